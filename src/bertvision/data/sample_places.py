"""What the sample set tells and asks about towns, museums and railways.

The notation is explained in `sample_text`.
"""

TOWN = """
founded: year 0
  {S} was founded in {v} | When was {S} founded?
  {S} received its charter in {v} | When was it that {S} received its charter?
  The first stone of {O} was laid in {v} | When was the first stone of {O} laid?
  ? In which year did {S} come into being?
  ? How far back does the history of {S} go?
founder: person
  {S} was founded by {v} | Who was {S} founded by?
  {P} founder was {v} | Who was {P} founder?
  {S} owed its existence to {v} | {S} owed its existence to whom?
  ? Who established {S}?
  ? Which settler started {S}?
people: number 1200-48000/100 inhabitants
  {S} had {v} | How many inhabitants did {S} have?
  {S} was home to {v} | {S} was home to how many inhabitants?
  A census of {O} counted {v} | How many inhabitants was it that a census of {O} counted?
  ? What was the population of {S}?
  ? How many people lived in {S}?
river: river
  {S} stood on {v} | What was it that {S} stood on?
  {S} was built along {v} | What was {S} built along?
  The mills of {O} were driven by {v} | What were the mills of {O} driven by?
  ? Which stream ran through {S}?
  ? On the banks of what was {S} situated?
trade: one glassmaking; weaving; shipbuilding; salt mining; brewing; cheesemaking; printing
  ; tanning; pottery; bell casting
  {S} was known for {v} | What was {S} known for?
  {S} lived mainly from {v} | What was it that {S} lived mainly from?
  {P} chief trade was {v} | What was {P} chief trade?
  ? Which industry made {S} rich?
  ? How did the people of {S} earn their money?
market: one Monday; Tuesday; Wednesday; Thursday; Friday; Saturday; Sunday
  The market in {O} was held every {v} | When was the market in {O} held?
  {S} held its market on a {v} | When was it that {S} held its market?
  {P} market day was {v} | What was {P} market day?
  ? On which day of the week could one shop in the square of {S}?
  ? When did traders gather in {S}?
mayor: person
  {P} first mayor was {v} | Who was {P} first mayor?
  {S} was governed by {v} | Who was {S} governed by?
  {v} was elected mayor of {O} | Who was elected mayor of {O}?
  ? Who headed the council of {S}?
  ? Which politician ran {S}?
tower: number 24-96 metres
  The church tower of {O} was {v} high | How high was the church tower of {O}?
  The church tower of {O} rose to {v} | How many metres was it that the church tower of {O} rose to?
  {S} had a church tower of {v} | How many metres did the church tower of {S} have?
  ? How tall was the steeple in {S}?
  ? What did the spire of {S} measure?
school: year 15-60
  {S} opened its first school in {v} | When was it that {S} opened its first school?
  Classes at the school in {O} began in {v} | When was it that classes at the school in {O} began?
  {P} first school was opened in {v} | When was {P} first school opened?
  ? Since what year could children take lessons in {S}?
  ? In which year did education begin in {S}?
arms: one a white stag; two crossed keys; a red tower; three fish; a black bear; a golden wheel
  ; an oak leaf; a silver plough
  The coat of arms of {O} showed {v} | What was it that the coat of arms of {O} showed?
  {P} coat of arms was {v} | What was {P} coat of arms?
  {S} bore {v} on its coat of arms | What was it that {S} bore on its coat of arms?
  ? Which emblem stood for {S}?
  ? What could be seen on the seal of {S}?
"""

MUSEUM = """
opened: year 0
  {S} was opened in {v} | When was {S} opened?
  {S} welcomed its first visitors in {v} | When was it that {S} welcomed its first visitors?
  The doors of {O} were unlocked for the first time in {v} | When were the doors of {O} unlocked for the first time?
  ? In which year did {S} start its work?
  ? Since when has the public been admitted to {S}?
town: place
  {S} was located in {v} | Where was {S} located?
  {S} stood in the centre of {v} | Where was it that {S} stood?
  The site chosen for {O} was in {v} | Where was the site chosen for {O}?
  ? Which town was home to {S}?
  ? To what place did one travel to see {S}?
architect: person
  {S} was designed by {v} | Who was {S} designed by?
  {P} architect was {v} | Who was {P} architect?
  The plans of {O} were signed by {v} | Who were the plans of {O} signed by?
  ? Who drew up the building of {S}?
  ? Which master builder gave {S} its shape?
rooms: number 5-48 rooms
  {S} had {v} open to visitors | How many rooms did {S} have open to visitors?
  {S} was divided into {v} | How many rooms was {S} divided into?
  The collection of {O} filled {v} | How many rooms was it that the collection of {O} filled?
  ? How much space did the display in {S} take up?
  ? Through how many halls could a guest of {S} walk?
treasure: one a gilded mask; a broken crown; a blue vase; an ivory comb; a silver globe
  ; a tiny violin; a royal cradle; a stone cat
  {P} greatest treasure was {v} | What was {P} greatest treasure?
  {S} was proud of {v} | What was {S} proud of?
  Most visitors came to {O} to see {v} | What was it that most visitors came to {O} to see?
  ? Which object in {S} was valued above all others?
  ? What was the star piece of {S}?
director: person
  {P} first director was {v} | Who was {P} first director?
  {S} was led by {v} | Who was {S} led by?
  {v} was appointed keeper of {O} | Who was appointed keeper of {O}?
  ? Who was the head of {S}?
  ? Which scholar managed {S}?
donor: person
  {S} was paid for by {v} | Who was {S} paid for by?
  The money for {O} was given by {v} | Who was the money for {O} given by?
  {S} was a gift of {v} | {S} was a gift of whom?
  ? Whose fortune made {S} possible?
  ? Which wealthy patron financed {S}?
before: one grain store; brewery; convent; prison; riding school; textile mill; town hall
  ; fire station; boat shed; bathhouse
  {S} was housed in a former {v} | {S} was housed in a former what?
  {P} building had once been a {v} | What was it that {P} building had once been?
  {S} moved into an abandoned {v} | What was it that {S} moved into?
  ? What was the original purpose of the building of {S}?
  ? What had the house served as before {S} came?
visitors: number 2100-9800/100 people
  {S} attracted {v} a year | How many people a year was it that {S} attracted?
  In its first year {O} was seen by {v} | How many people was {O} seen by in its first year?
  {S} sold tickets to {v} a year | {S} sold tickets to how many people a year?
  ? How many guests did {S} receive annually?
  ? How large was the yearly audience of {S}?
closed: one Monday; Tuesday; Wednesday; Thursday; Friday; Sunday
  {S} was closed every {v} | When was {S} closed?
  The staff of {O} had the day off on {v} | When was it that the staff of {O} had the day off?
  {P} closing day was {v} | What was {P} closing day?
  ? On which day of the week could nobody visit {S}?
  ? What was the day of rest at {S}?
"""

RAILWAY = """
opened: year 0
  {S} was opened in {v} | When was {S} opened?
  The first train ran on {O} in {v} | When was it that the first train ran on {O}?
  {S} began regular service in {v} | When was it that {S} began regular service?
  ? In which year did {S} carry its earliest passengers?
  ? When could people start to travel on {S}?
length: number 14-98 kilometres
  {S} was {v} long | How long was {S}?
  The tracks of {O} covered {v} | How many kilometres was it that the tracks of {O} covered?
  {P} main line was {v} long | How long was {P} main line?
  ? What was the total distance served by {S}?
  ? How far could one ride on {S}?
stations: number 5-29 stations
  {S} had {v} | How many stations did {S} have?
  There were {v} along {O} | How many stations were there along {O}?
  {S} was served by {v} | How many stations was {S} served by?
  ? How many stops did {S} make?
  ? At how many places could one board {S}?
engineer: person
  {S} was built by {v} | Who was {S} built by?
  {P} chief engineer was {v} | Who was {P} chief engineer?
  The route of {O} was surveyed by {v} | Who was the route of {O} surveyed by?
  ? Which expert was in charge of laying {S}?
  ? Who directed the construction of {S}?
terminus: place
  {S} ended at {v} | Where was it that {S} ended?
  {P} terminus was {v} | What was {P} terminus?
  The last stop of {O} was {v} | What was the last stop of {O}?
  ? In which town did travellers on {S} have to get off?
  ? What was the final destination of {S}?
depot: place
  {P} engines were kept at {v} | Where were {P} engines kept?
  {P} workshops were in {v} | Where were {P} workshops?
  The engine sheds of {O} stood in {v} | Where was it that the engine sheds of {O} stood?
  ? Where did {S} repair its locomotives?
  ? Which place housed the rolling stock of {S}?
freight: one slate; milk; coal; timber; sugar beet; iron ore; fresh fish; granite; potatoes
  ; cattle; sand; flour
  {S} mostly carried {v} | What was it that {S} mostly carried?
  {P} main freight was {v} | What was {P} main freight?
  {S} was built to move {v} | What was {S} built to move?
  ? Which goods filled the wagons of {S}?
  ? What was chiefly transported by {S}?
colour: one dark red; olive green; navy blue; cream; chocolate brown; orange; black; pale yellow
  ; grey
  {P} carriages were painted {v} | What were {P} carriages painted?
  {v} was the colour of {P} carriages | What was the colour of {P} carriages?
  The colour of the carriages of {O} was {v} | What was the colour of the carriages of {O}?
  ? What shade did the coaches of {S} have?
  ? How could one recognise the coaches of {S}?
tunnel: number 130-990/10 metres
  {P} longest tunnel was {v} from end to end | How long was {P} longest tunnel from end to end?
  {S} passed through a tunnel of {v} | {S} passed through a tunnel of how many metres?
  The longest tunnel on {O} was {v} long | How long was the longest tunnel on {O}?
  ? How far did {S} run underground?
  ? What was the extent of the deepest passage on {S}?
closed: year 25-70
  {S} was closed in {v} | When was {S} closed?
  The tracks of {O} were lifted in {v} | When were the tracks of {O} lifted?
  The last train ran on {O} in {v} | When was it that the last train ran on {O}?
  ? In which year was {S} given up?
  ? When did {S} cease to operate?
"""
