"""What the sample set tells and asks about ships, machines, bridges and novels.

The notation is explained in `sample_text`.
"""

SHIP = """
launched: year 0
  {S} was launched in {v} | When was {S} launched?
  {S} left the slipway in {v} | When was it that {S} left the slipway?
  The launch of {O} took place in {v} | When was it that the launch of {O} took place?
  ? In which year did {S} first go to sea?
  ? What year saw {S} enter the water for the first time?
  ? How early did {S} come off the stocks?
builder: person
  {S} was built by {v} | Who was {S} built by?
  {S} was the work of the shipwright {v} | {S} was the work of which shipwright?
  {P} builder was {v} | Who was {P} builder?
  ? Which craftsman constructed {S}?
  ? Who was responsible for the construction of {S}?
  ? Whose yard produced {S}?
length: number 26-98 metres
  {S} was {v} long | How long was {S}?
  {S} measured {v} from bow to stern | How long was {S} from bow to stern?
  {P} length was given as {v} | What was given as {P} length?
  ? What distance lay between the two ends of {S}?
  ? How large was {S} from one end to the other?
hull: one oak; teak; larch; iron; steel; elm; pine; mahogany; cedar; riveted plates
  {P} hull was made of {v} | What was {P} hull made of?
  {S} was made of {v} throughout | What was {S} made of throughout?
  {v} was chosen for {P} hull | What was chosen for {P} hull?
  ? From which material was {S} constructed?
  ? What formed the body of {S}?
cargo: one copper ore; raw wool; salted fish; timber; coal; sugar; tea; coffee beans; wheat; slate
  ; cotton; dried fruit
  {S} usually carried {v} | What was it that {S} usually carried?
  {P} usual cargo was {v} | What was {P} usual cargo?
  {S} was mostly loaded with {v} | What was {S} mostly loaded with?
  ? Which goods did {S} transport?
  ? What freight filled the hold of {S}?
  ? What did merchants send abroad on {S}?
port: place
  {P} home port was {v} | What was {P} home port?
  {S} was registered at {v} | Where was {S} registered?
  {S} was based in {v} for most of its life | Where was {S} based for most of its life?
  ? To which harbour did {S} belong?
  ? From which town did {S} normally sail?
captain: person
  {P} first captain was {v} | Who was {P} first captain?
  {S} was commanded by {v} | Who was {S} commanded by?
  The command of {O} was given to {v} | Who was the command of {O} given to?
  ? Who gave the orders aboard {S}?
  ? Which sailor led the crew of {S}?
  ? Who was the officer in charge of {S}?
crew: number 14-88
  {S} had a crew of {v} | {S} had a crew of how many?
  The crew of {O} was {v} strong | How strong was the crew of {O}?
  A crew of {v} was needed to sail {O} | A crew of how many was needed to sail {O}?
  ? How many sailors worked on {S}?
  ? How many people did it take to work {S}?
end: year 18-45
  {S} was broken up in {v} | When was {S} broken up?
  {S} was sold for scrap in {v} | When was {S} sold for scrap?
  The career of {O} ended in {v} | When was it that the career of {O} ended?
  ? In which year did {S} go out of service?
  ? What was the final year of {S}?
figurehead: one a mermaid; a lion; a saint; a dolphin; a wolf; an angel; a bearded king; a swan
  ; a sea horse
  {P} figurehead showed {v} | What was it that {P} figurehead showed?
  {S} had {v} as its figurehead | What was it that {S} had as its figurehead?
  The carved figurehead of {O} was {v} | What was the carved figurehead of {O}?
  ? What carving decorated the bow of {S}?
  ? Which figure looked out from the front of {S}?
"""

MACHINE = """
patented: year 0
  {S} was patented in {v} | When was {S} patented?
  The patent for {O} was granted in {v} | When was the patent for {O} granted?
  {S} was registered as new in {v} | When was {S} registered as new?
  ? In which year was {S} legally protected?
  ? When did {S} receive its legal protection?
inventor: person
  {S} was invented by {v} | Who was {S} invented by?
  {S} was the idea of {v} | Whose idea was {S}?
  {P} inventor was {v} | Who was {P} inventor?
  ? Who came up with {S}?
  ? Which person designed {S}?
  ? Whose mind produced {S}?
power: one steam; falling water; a coiled spring; compressed air; a gas engine; electricity
  ; a treadle; a hand crank; weights
  {S} was driven by {v} | What was {S} driven by?
  {S} got its power from {v} | What was it that {S} got its power from?
  The moving parts of {O} were driven by {v} | What were the moving parts of {O} driven by?
  ? What kept {S} going?
  ? Where did {S} get its energy from?
weight: number 15-95 kilograms
  {S} weighed {v} | What was it that {S} weighed?
  {P} weight was {v} | What was {P} weight?
  {S} had a total weight of {v} | What was the total weight of {S}?
  ? How heavy was {S}?
  ? What did the scales show for {S}?
price: number 120-980/10 crowns
  {S} was sold for {v} | {S} was sold for how much?
  {P} price was {v} | What was {P} price?
  The price asked for {O} was {v} | What was the price asked for {O}?
  ? How much did a buyer pay for {S}?
  ? What did {S} cost?
shown: place
  {S} was first shown in {v} | Where was {S} first shown?
  {S} was presented to the public at {v} | Where was {S} presented to the public?
  The first display of {O} was held in {v} | Where was the first display of {O} held?
  ? In which town could people see {S} before anyone else?
  ? Where did {S} have its debut?
maker: firm
  {S} was made by {v} | Who was {S} made by?
  {S} was produced in the works of {v} | {S} was produced in the works of whom?
  The right to make {O} was bought by {v} | Who was the right to make {O} bought by?
  ? Which company manufactured {S}?
  ? What firm turned out {S}?
buyers: one farmers; hospitals; small schools; the army; city printers; shipyards; bakeries
  ; coal mines; breweries; hotels
  {S} was mainly bought by {v} | Who was {S} mainly bought by?
  {P} main buyers were {v} | Who were {P} main buyers?
  {S} was popular with {v} | Who was {S} popular with?
  ? Who were the typical customers for {S}?
  ? Where did most copies of {S} find a use?
frame: one cast iron; brass; beech wood; ash wood; steel tubes; bronze; aluminium; walnut; copper
  {P} frame was made of {v} | What was {P} frame made of?
  {S} had a frame of {v} | {S} had a frame of what?
  {S} was mounted in a case of {v} | {S} was mounted in a case of what?
  ? Which material held {S} together?
  ? What was the body of {S} constructed from?
flaw: one its noise; its smell; a weak axle; slow cooling; leaking oil; a fragile lid
  ; its short life; thick smoke
  {P} main weakness was {v} | What was {P} main weakness?
  {S} was criticised for {v} | What was {S} criticised for?
  The one complaint about {O} was {v} | What was the one complaint about {O}?
  ? What did users dislike in {S}?
  ? Which drawback did {S} suffer from?
"""

BRIDGE = """
completed: year 0
  {S} was completed in {v} | When was {S} completed?
  {S} was opened to traffic in {v} | When was {S} opened to traffic?
  The first carts crossed {O} in {v} | When was it that the first carts crossed {O}?
  ? In which year was {S} ready for use?
  ? When did the construction of {S} come to an end?
engineer: person
  {S} was designed by {v} | Who was {S} designed by?
  The plans for {O} were drawn by {v} | Who were the plans for {O} drawn by?
  {P} engineer was {v} | Who was {P} engineer?
  ? Who thought out {S}?
  ? Which expert planned {S}?
river: river
  {S} spanned {v} | What was it that {S} spanned?
  {S} was thrown across {v} | What was {S} thrown across?
  {S} carried the road over {v} | What was it that {S} carried the road over?
  ? Which stream flowed beneath {S}?
  ? What body of water did {S} cross?
length: number 60-990/10 metres
  {S} was {v} long | How long was {S}?
  {P} total length was {v} | What was {P} total length?
  {S} measured {v} from bank to bank | How long was {S} from bank to bank?
  ? How far did one walk on {S}?
  ? What distance did {S} cover?
arches: number 3-19 arches
  {S} rested on {v} | How many arches was it that {S} rested on?
  {S} was carried by {v} | How many arches was {S} carried by?
  {S} had {v} of equal width | How many arches of equal width did {S} have?
  ? How many curved openings supported {S}?
  ? What was the number of arches under {S}?
material: one granite; red brick; limestone; wrought iron; oak beams; concrete; steel; sandstone
  ; slate
  {S} was built of {v} | What was {S} built of?
  {P} walls were of {v} | What were {P} walls of?
  The contractors chose {v} for {O} | What was it that the contractors chose for {O}?
  ? Which material was used in the construction of {S}?
  ? What did the builders use for {S}?
cost: number 12000-98000/1000 crowns
  {S} cost {v} to build | How many crowns was it that {S} cost to build?
  The bill for {O} came to {v} | What was it that the bill for {O} came to?
  The town paid {v} for {O} | What was it that the town paid for {O}?
  ? How much money was spent on {S}?
  ? How expensive was {S}?
opener: person
  {S} was opened by {v} | Who was {S} opened by?
  The ribbon at {O} was cut by {v} | Who was the ribbon at {O} cut by?
  {S} was inaugurated by {v} | Who was {S} inaugurated by?
  ? Which guest of honour declared {S} open?
  ? Who took the leading part in the ceremony at {S}?
repaired: year 20-70
  {S} was repaired in {v} | When was {S} repaired?
  {S} was strengthened in {v} | When was {S} strengthened?
  The deck of {O} was renewed in {v} | When was the deck of {O} renewed?
  ? In which year did workmen restore {S}?
  ? When was the damage to {S} put right?
colour: one dark green; pale blue; rust red; cream; black; silver grey; bright yellow; white; brown
  {P} railings were painted {v} | What were {P} railings painted?
  The colour chosen for {O} was {v} | What was the colour chosen for {O}?
  {S} was painted {v} at first | What was {S} painted at first?
  ? Which shade of paint covered {S}?
  ? What tint had been selected for {S}?
"""

NOVEL = """
published: year 0
  {S} was published in {v} | When was {S} published?
  {S} first appeared in {v} | When was it that {S} first appeared?
  The first edition of {O} came out in {v} | When was it that the first edition of {O} came out?
  ? In which year could readers first buy {S}?
  ? When did {S} reach the bookshops?
author: person
  {S} was written by {v} | Who was {S} written by?
  {P} author was {v} | Who was {P} author?
  {S} was the first novel of {v} | {S} was the first novel of whom?
  ? From whose pen did {S} come?
  ? Which writer created {S}?
setting: place
  {S} was set in {v} | Where was {S} set?
  The story of {O} took place in {v} | Where was it that the story of {O} took place?
  The action of {O} began in {v} | Where was it that the action of {O} began?
  ? In which town did the events of {S} happen?
  ? Which place formed the background of {S}?
hero: one lighthouse keeper; piano teacher; retired judge; young nurse; village baker; gardener
  ; bank clerk; ferryman; locksmith
  {P} hero was {a} {v} | What was {P} hero?
  {S} followed the life of {a} {v} | {S} followed the life of what?
  At the centre of {O} stood {a} {v} | What was it that stood at the centre of {O}?
  ? What did the main character of {S} do for a living?
  ? Which occupation did the leading figure in {S} have?
pages: number 140-890 pages
  {S} was {v} long | How long was {S}?
  {S} ran to {v} | {S} ran to how many pages?
  The first printing of {O} had {v} | How many pages did the first printing of {O} have?
  ? How thick was {S}?
  ? What was the extent of {S}?
artist: person
  {S} was illustrated by {v} | Who was {S} illustrated by?
  The drawings for {O} were made by {v} | Who were the drawings for {O} made by?
  {P} cover was the work of {v} | {P} cover was the work of whom?
  ? Which artist provided pictures for {S}?
  ? Who decorated {S}?
language: one Danish; Dutch; Finnish; Greek; Hungarian; Italian; Japanese; Polish; Portuguese
  ; Spanish; Swedish; Turkish
  {S} was soon translated into {v} | What was {S} soon translated into?
  The only translation of {O} was into {v} | What was the only translation of {O} into?
  A version of {O} was made in {v} | What was a version of {O} made in?
  ? In which foreign language could one read {S}?
  ? Into what tongue did {S} pass?
dedication: person
  {S} was dedicated to {v} | Who was {S} dedicated to?
  The dedication in {O} named {v} | Who was it that the dedication in {O} named?
  {S} opened with a greeting to {v} | {S} opened with a greeting to whom?
  ? In whose honour was {S} written?
  ? To which person did the writer offer {S}?
publisher: firm
  {S} was brought out by {v} | Who was {S} brought out by?
  {P} publisher was {v} | Who was {P} publisher?
  The rights to {O} were held by {v} | Who were the rights to {O} held by?
  ? Which house printed and sold {S}?
  ? What company issued {S}?
sales: number 1200-9800/100 copies
  {S} sold {v} in all | How many copies was it that {S} sold in all?
  The sales of {O} reached {v} | How many copies was it that the sales of {O} reached?
  Within a year {v} of {O} were sold | How many copies of {O} were sold within a year?
  ? How many people bought {S}?
  ? How many times was {S} sold?
"""
