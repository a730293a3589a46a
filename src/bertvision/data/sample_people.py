"""What the sample set tells and asks about people, firms, expeditions and festivals.

The notation is explained in `sample_text`.
"""

PERSON = """
born: year 0
  {S} was born in {v} | When was {S} born?
  {P} year of birth was {v} | What was {P} year of birth?
  {S} came into the world in {v} | When was it that {S} came into the world?
  ? What was the first year of {P} life?
  ? In which year did the life of {S} begin?
home: place
  {P} birthplace was {v} | What was {P} birthplace?
  {S} was raised in {v} | Where was {S} raised?
  {P} home town was {v} | What was {P} home town?
  ? Which town did {S} come from?
  ? Where did {S} spend the years of childhood?
trade: one botanist; clockmaker; surveyor; chemist; engraver; physician; translator; architect
  ; astronomer; glassblower; organist
  {S} worked as {a} {v} | {S} worked as what?
  {S} was trained as {a} {v} | What was {S} trained as?
  {P} trade was that of {a} {v} | What was {P} trade?
  ? How did {S} earn a living?
  ? What was the occupation of {S}?
teacher: person
  {S} was taught by {v} | Who was {S} taught by?
  {P} teacher was {v} | Who was {P} teacher?
  {S} studied under {v} | Who was it that {S} studied under?
  ? From whom did {S} take lessons?
  ? Whose pupil was {S}?
prize: one a silver medal; a gold watch; the Garland Prize; the Copper Rose; a royal pension
  ; the Founders' Medal; an honorary degree
  {S} was awarded {v} | What was {S} awarded?
  {S} was honoured with {v} | What was {S} honoured with?
  The academy rewarded {O} with {v} | What was it that the academy rewarded {O} with?
  ? Which distinction did {S} receive?
  ? What did {S} win?
moved: place
  {S} later settled in {v} | Where was it that {S} later settled?
  {S} moved to {v} after the war | Where was it that {S} moved to after the war?
  A new post took {O} to {v} | Where was it that a new post took {O} to?
  ? In which town did {S} make a new home?
  ? To what place did {S} relocate?
fame: one a map of the moon; a treatise on mosses; a dictionary of dialects; a table of tides
  ; a cure for fever; a new alphabet
  {S} was remembered for {v} | What was {S} remembered for?
  {P} best-known work was {v} | What was {P} best-known work?
  {S} was famous for {v} | What was {S} famous for?
  ? What brought {S} lasting renown?
  ? Which achievement is linked with {S}?
pastime: one fencing; chess; beekeeping; rowing; hill walking; card games; gardening; fishing
  ; choir singing; ice skating
  {P} favourite pastime was {v} | What was {P} favourite pastime?
  {S} was fond of {v} | What was {S} fond of?
  {S} found rest in {v} | What was it that {S} found rest in?
  ? How did {S} spend leisure hours?
  ? What did {S} enjoy when the day's duties were over?
spouse: person
  {S} was married to {v} | Who was {S} married to?
  {P} marriage to {v} was a happy one | Who was {P} happy marriage to?
  {P} life was shared with {v} | Who was {P} life shared with?
  ? What was the name of {P} spouse?
  ? With whom did {S} found a family?
died: year 48-82
  {S} died in {v} | When was it that {S} died?
  {P} death came in {v} | When was it that {P} death came?
  {S} was buried in {v} | When was {S} buried?
  ? In which year did {S} pass away?
  ? What was the last year in the life of {S}?
"""

FIRM = """
founded: year 0
  {S} was founded in {v} | When was {S} founded?
  {S} opened for business in {v} | When was it that {S} opened for business?
  The history of {O} began in {v} | When was it that the history of {O} began?
  ? In which year was {S} set up?
  ? When did {S} begin to trade?
product: one pianos; bicycles; umbrellas; typewriters; wallpaper; biscuits; lenses; door locks
  ; toy trains; saddles; candles; fountain pens
  {S} produced {v} | What was it that {S} produced?
  {S} was known for its {v} | What was {S} known for?
  {P} first product was {v} | What was {P} first product?
  ? Which goods came from the workshops of {S}?
  ? What did {S} make?
seat: place
  {S} had its head office in {v} | Where was it that {S} had its head office?
  {P} factory was in {v} | Where was {P} factory?
  {S} was based in {v} | Where was {S} based?
  ? In which town was {S} at home?
  ? From what place was {S} run?
workers: number 30-980/10 workers
  {S} employed {v} | How many workers were employed by {S}?
  {S} gave jobs to {v} | {S} gave jobs to how many workers?
  The staff of {O} grew to {v} | How many workers was it that the staff of {O} grew to?
  ? How many people were on the payroll of {S}?
  ? How big was the workforce of {S}?
manager: person
  {P} first manager was {v} | Who was {P} first manager?
  {S} was run by {v} | Who was {S} run by?
  The management of {O} was left to {v} | Who was the management of {O} left to?
  ? Who was at the head of {S}?
  ? Which person took the decisions at {S}?
branch: place
  {S} opened a branch in {v} | Where was it that {S} opened a branch?
  {P} only branch was in {v} | Where was {P} only branch?
  {S} was also present in {v} | Where was {S} also present?
  ? To which other town did {S} expand?
  ? Where did {S} set up a second office?
logo: one a red kite; a sitting hare; a blue star; a rising sun; an open hand; a running horse
  ; a green ladder; a crescent moon
  {P} trademark was {v} | What was {P} trademark?
  {S} used {v} as its trademark | What was it that {S} used as its trademark?
  Every box from {O} was marked with {v} | What was every box from {O} marked with?
  ? Which symbol identified the goods of {S}?
  ? What sign did {S} put on its wares?
customer: one the navy; the royal court; the post office; a railway; two universities
  ; the city council; an opera house; a hospital
  {P} best customer was {v} | Who was {P} best customer?
  {S} lived mainly from orders by {v} | {S} lived mainly from orders by whom?
  Half of the sales of {O} were made to {v} | Who were half of the sales of {O} made to?
  ? Who bought the most from {S}?
  ? On whose purchases did {S} depend?
buyer: person
  {S} was finally bought by {v} | Who was {S} finally bought by?
  {S} was sold to {v} | Who was {S} sold to?
  {P} last owner was {v} | Who was {P} last owner?
  ? Who took over {S}?
  ? Into whose hands did {S} pass?
closed: year 22-80
  {S} was closed in {v} | When was {S} closed?
  {S} went bankrupt in {v} | When was it that {S} went bankrupt?
  The doors of {O} were shut for good in {v} | When were the doors of {O} shut for good?
  ? In which year did {S} cease trading?
  ? When did the story of {S} end?
"""

EXPEDITION = """
start: year 0
  {S} set out in {v} | When was it that {S} set out?
  {S} was launched in {v} | When was {S} launched?
  The start of {O} fell in {v} | When was it that the start of {O} fell?
  ? In which year did {S} get under way?
  ? When did the members of {S} leave home?
leader: person
  {S} was led by {v} | Who was {S} led by?
  {P} leader was {v} | Who was {P} leader?
  The command of {O} lay with {v} | Who was it that the command of {O} lay with?
  ? Who headed {S}?
  ? Which explorer was in charge of {S}?
origin: place
  {S} started from {v} | Where was it that {S} started from?
  {P} point of departure was {v} | What was {P} point of departure?
  The base of {O} was at {v} | Where was the base of {O}?
  ? In which town did {S} begin its journey?
  ? What place did {S} set off from?
members: number 8-48 members
  {S} had {v} | How many members did {S} have?
  {S} was made up of {v} | How many members was {S} made up of?
  On the list of {O} were {v} | How many members were on the list of {O}?
  ? How many people took part in {S}?
  ? How large was the party of {S}?
duration: number 3-26 months
  {S} lasted {v} | How long was it that {S} lasted?
  {S} was away for {v} | How long was {S} away?
  The journey of {O} took {v} | How long was it that the journey of {O} took?
  ? How much time did {S} need?
  ? For what period were the travellers of {S} absent?
aim: one a lost city; rare orchids; gold; a trade route; the source of a river; ancient tombs
  ; warm springs; a safe harbour
  The aim of {O} was to find {v} | What was the aim of {O} to find?
  {S} was looking for {v} | What was {S} looking for?
  {S} was sent to find {v} | What was {S} sent to find?
  ? What did {S} hope to discover?
  ? For the sake of what was {S} undertaken?
transport: one mules; camels; dog sledges; canoes; ox carts; reindeer; balloons; river boats
  ; ponies; motor cars
  {S} travelled with {v} | What was it that {S} travelled with?
  The baggage of {O} was moved by {v} | What was the baggage of {O} moved by?
  {S} relied on {v} | What was it that {S} relied on?
  ? Which means of transport did {S} use?
  ? What carried the supplies of {S}?
sponsor: one a museum; a newspaper; the crown; a rich widow; a fur company; a bank; the admiralty
  ; a learned society; a tea merchant
  {S} was paid for by {v} | Who was {S} paid for by?
  The funds of {O} came from {v} | The funds of {O} came from whom?
  {S} was backed by {v} | Who was {S} backed by?
  ? Who bore the costs of {S}?
  ? Who provided the money behind {S}?
doctor: person
  {P} doctor was {v} | Who was {P} doctor?
  The health of {O} was watched over by {v} | Who was the health of {O} watched over by?
  {S} was joined by the physician {v} | {S} was joined by which physician?
  ? Who treated the sick on {S}?
  ? Which medical expert belonged to {S}?
trouble: one heavy snow; fever; a flood; a mutiny; scurvy; lack of water; a forest fire
  ; hostile weather; a broken compass
  {S} was held up by {v} | What was {S} held up by?
  {S} nearly failed because of {v} | {S} nearly failed because of what?
  The greatest danger to {O} was {v} | What was the greatest danger to {O}?
  ? Which difficulty did {S} have to overcome?
  ? What caused problems for {S}?
"""

FESTIVAL = """
first: year 0
  {S} was first held in {v} | When was {S} first held?
  {S} was celebrated for the first time in {v} | When was {S} celebrated for the first time?
  The tradition of {O} began in {v} | When was it that the tradition of {O} began?
  ? In which year did {S} start?
  ? Since when has {S} existed?
town: place
  {S} took place in {v} | Where was it that {S} took place?
  {S} was held in {v} | Where was {S} held?
  The home of {O} was {v} | What was the home of {O}?
  ? Which town hosted {S}?
  ? To what place did guests of {S} have to travel?
month: one January; February; March; April; May; June; July; August; September; October; November
  ; December
  {S} fell in the month of {v} | What was the month that {S} fell in?
  The month set aside for {O} was {v} | What was the month set aside for {O}?
  The tents of {O} were put up in {v} | When were the tents of {O} put up?
  ? In which month could one visit {S}?
  ? At what time of the year did people enjoy {S}?
length: number 2-14 days
  {S} lasted {v} | How long was it that {S} lasted?
  {S} went on for {v} | How long was it that {S} went on?
  The programme of {O} filled {v} | How many days was it that the programme of {O} filled?
  ? What was the duration of {S}?
  ? How much time did {S} take?
founder: person
  {S} was started by {v} | Who was {S} started by?
  {P} founder was {v} | Who was {P} founder?
  The first plan for {O} was made by {v} | Who was the first plan for {O} made by?
  ? Who came up with the idea of {S}?
  ? Which citizen brought {S} to life?
highlight: one a boat race; a night parade; a pie contest; a mock trial; a torch dance
  ; a sheep auction; a silent play; a stilt walk
  {P} highlight was {v} | What was {P} highlight?
  {S} always closed with {v} | What was it that {S} always closed with?
  The crowds came to {O} for {v} | What was it that the crowds came to {O} for?
  ? Which event at {S} was the most popular?
  ? What was the main attraction of {S}?
visitors: number 2200-9900/100 visitors
  {S} drew {v} | How many visitors was it that {S} drew?
  {S} was attended by {v} | How many visitors was {S} attended by?
  At its best {O} counted {v} | How many visitors was it that {O} counted at its best?
  ? How many people came to {S}?
  ? How large was the crowd at {S}?
food: one plum cake; roast chestnuts; onion soup; smoked eel; honey bread; baked apples; pea stew
  ; fried cheese; ginger biscuits
  Everyone at {O} ate {v} | What was it that everyone at {O} ate?
  {P} traditional dish was {v} | What was {P} traditional dish?
  {S} was famous for its {v} | What was {S} famous for?
  ? Which food was typical of {S}?
  ? What did cooks prepare for {S}?
patron: person
  {S} was paid for by {v} | Who was {S} paid for by?
  {P} patron was {v} | Who was {P} patron?
  The costs of {O} were met by {v} | Who were the costs of {O} met by?
  ? Whose money kept {S} alive?
  ? Which sponsor supported {S}?
pause: year 20-70
  {S} was cancelled in {v} | When was {S} cancelled?
  Because of a storm {O} was called off in {v} | When was {O} called off because of a storm?
  {S} had to be abandoned in {v} | When was it that {S} had to be abandoned?
  ? In which year did {S} not happen?
  ? When was there no celebration of {S}?
"""
