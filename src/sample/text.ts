/**
 * Owns what sample users are called and what they write: small grammars, one per topic, whose slots are filled from word lists.
 * Invariant: the same random numbers give the same text; everything stays within the limits of the API.
 */
import type { Seeded } from './seeded.ts';

interface Topic {
  readonly name: string;
  /** What an author says of this interest in a self-description. */
  readonly interest: string;
  /** `{slot}` is replaced by a word of that list. */
  readonly posts: readonly string[];
  readonly words: Readonly<Record<string, readonly string[]>>;
}

export interface Persona {
  /** 1 to 64 characters of [A-Za-z0-9_.~-]; different for every index. */
  readonly id: string;
  readonly displayName: string;
  readonly bio: string;
  /** Indices into the topics: what this persona writes about. */
  readonly topics: readonly number[];
}

const TOPICS: readonly Topic[] = [
  {
    name: 'trains',
    interest: 'slow trains',
    posts: [
      'The {train} to {town} left {minutes} minutes late and still arrived on time. Nobody can explain this to me.',
      'Window seat on the {train}, {weather} outside, coffee that is mostly hope. Happy.',
      'They have repainted the station at {town}. The clock is still {minutes} minutes wrong.',
      'Changed at {town} for the first time. {verdict}',
      'A timetable is a poem with penalties. Today’s verse: {town}, {minutes} minutes, run.',
      'If you take the {train}, sit on the left after {town}. You’re welcome.',
    ],
    words: {
      train: ['night train', 'regional', '7:42', 'old railcar', 'coastal line', 'last express'],
      town: ['Arvika', 'Linz', 'Görlitz', 'Settle', 'Brig', 'Évora', 'Tampere', 'Olomouc', 'Roscoff'],
      minutes: ['three', 'four', 'seven', 'eleven', 'nineteen'],
      weather: ['fog', 'first snow', 'low sun', 'rain sideways', 'one very large moon'],
      verdict: [
        'The bakery on platform 2 is worth missing a train for.',
        'There is a bench, a pigeon, and a great silence.',
        'Would change again.',
      ],
    },
  },
  {
    name: 'bread',
    interest: 'sourdough',
    posts: [
      'Day {day} of the new starter. It smells of {smell}, which the book calls normal.',
      'Turned the oven down by {degrees} degrees and the crust finally {crust}.',
      'Baked with {flour} today. {verdict}',
      'Reminder: salt goes in the dough. I say this as somebody who has just eaten {flour} without it.',
      'The neighbour traded me {trade} for half a loaf. Best market in town.',
      'A {flour} loaf does not care about your schedule. It is ready when it is ready.',
    ],
    words: {
      day: ['2', '3', '5', '8', '13'],
      smell: ['yoghurt', 'green apples', 'wet cardboard', 'a cellar in August'],
      degrees: ['ten', 'fifteen', 'twenty-five'],
      crust: ['sings', 'cracks like it should', 'is darker than my coffee'],
      flour: ['rye', 'spelt', 'einkorn', 'whole wheat', 'buckwheat'],
      verdict: ['Dense, but so am I on Mondays.', 'A brick. A delicious brick.', 'I may never buy bread again.'],
      trade: ['six eggs', 'a jar of quince jelly', 'a bicycle pump', 'two hours of Portuguese lessons'],
    },
  },
  {
    name: 'databases',
    interest: 'query plans',
    posts: [
      'Dropped an index nobody had used since {year}. Writes are {percent} % faster. Should have looked sooner.',
      'The query was slow because of {cause}. It is always {cause}.',
      'Postgres tip: read the plan from the inside out, and believe the {thing} before you believe me.',
      'Spent the morning on {cause}, the afternoon on explaining it, the evening on walking it off.',
      'Moved the job queue off the cache server. p99 went from {slow} ms to {fast} ms. That’s the whole story.',
      'Every cache is a promise to be wrong later. Ours says when.',
      'Backups are restored on {weekday} here. Not made, restored. Try it.',
    ],
    words: {
      year: ['2016', '2018', '2019', '2021'],
      percent: ['9', '14', '22', '31'],
      cause: ['a missing statistic', 'a stale snapshot', 'an implicit cast', 'one very long transaction', 'lock order'],
      thing: ['row counts', 'buffer counts', 'actual times'],
      slow: ['88', '140', '310'],
      fast: ['4', '6', '11'],
      weekday: ['Tuesday', 'Wednesday', 'Friday'],
    },
  },
  {
    name: 'birds',
    interest: 'birds at a distance',
    posts: [
      '{count} {birds} over the {place} this morning. The dog saw none of them.',
      'A {bird} on the {place}, entirely unimpressed by my new scope.',
      'First {bird} of the year. {verdict}',
      'I waited {hours} hours for a {bird} and it landed behind me.',
      'The {bird} is back on the {place}. Third year running.',
      'Overheard at the hide: “That is either a {bird} or a plastic bag.” It was both, in turn.',
    ],
    words: {
      count: ['Two', 'Nine', 'Some forty', 'Far too many', 'Fourteen'],
      bird: ['red kite', 'curlew', 'waxwing', 'swift', 'lapwing', 'goldcrest'],
      birds: ['red kites', 'curlews', 'waxwings', 'swifts', 'lapwings', 'goldcrests'],
      place: ['weir', 'salt marsh', 'gasworks', 'allotments', 'old quarry', 'reed bed'],
      verdict: ['Spring may begin.', 'Wrote it down before anybody could correct me.', 'I did cry a little.'],
      hours: ['two', 'three', 'four and a half'],
    },
  },
  {
    name: 'running',
    interest: 'running uphill',
    posts: [
      '{distance} before breakfast. {feeling}',
      'New shoes, old {ache}. {distance} anyway.',
      'Ran past the {sight} again. We nod to each other now.',
      'Coach says easy means easy. My watch says {distance}, my legs say otherwise.',
      'Week {week} of the plan: {feeling}',
      'Somebody has put a bench at the top of the hill. To whoever it was: {thanks}',
    ],
    words: {
      distance: ['6 km', '10 km', '14 slow kilometres', 'Half a marathon', '8 km in the rain'],
      feeling: [
        'The hill has not got any smaller.',
        'Legs of glass, head of air.',
        'I overtook a tram.',
        'It felt almost easy.',
      ],
      ache: ['knee', 'Achilles', 'excuses'],
      sight: ['heron', 'man with the accordion', 'half-built bridge', 'goat'],
      week: ['2', '5', '9', '11'],
      thanks: ['thank you.', 'I owe you a coffee.', 'may your laces never come undone.'],
    },
  },
  {
    name: 'films',
    interest: 'films with subtitles',
    posts: [
      'Saw {film} again. It is about {theme}, and about whoever sits next to you.',
      'The projectionist forgot the sound for {minutes} minutes of {film}. Nobody complained. It was better.',
      'Hot take: {film} is a comedy.',
      'There were five of us at the late show of {film}. {verdict}',
      'Watched {film} for the {part}, stayed for {theme}.',
    ],
    words: {
      film: ['“The Ferry”', '“Winter Accounts”', '“Nine Rooms”', '“The Long Platform”', '“Salt”', '“A Map of Rain”'],
      theme: ['patience', 'brothers', 'the price of a house', 'weather', 'not saying sorry'],
      minutes: ['two', 'four', 'ten'],
      verdict: [
        'We all clapped. For whom?',
        'Then we missed the last bus together.',
        'One of us snored, in time with the score.',
      ],
      part: ['soundtrack', 'costumes', 'dog', 'last shot'],
    },
  },
  {
    name: 'garden',
    interest: 'tomatoes',
    posts: [
      'Slugs {slugs}, {crop} {score}. The season is long.',
      'Sowed the {crop} under glass. {hope}',
      'What I have learned about {crop}: less water, more waiting.',
      'The compost is {state}. I am prouder of this than of my degree.',
      'Frost tonight. The {crop} have been given {cover}.',
      'Anyone want {crop}? I planted for twelve. There are two of us.',
    ],
    words: {
      slugs: ['3', '5', '12'],
      crop: ['tomatoes', 'beans', 'courgettes', 'peas', 'radishes', 'chard'],
      score: ['0', '1', '2 (disputed)'],
      hope: ['See you in June.', 'Every label will be wrong by May.', 'The cat has already sat on them.'],
      state: ['steaming', 'full of worms with good posture', 'almost soil'],
      cover: ['my good blanket', 'three newspapers', 'a speech'],
    },
  },
  {
    name: 'city',
    interest: 'cycle lanes',
    posts: [
      'The council has found {money} for {project}. The debate took {hours} hours and two bananas.',
      'New cycle lane on {street}: ends at a tree. The tree is lovely.',
      'Counted {count} bicycles and {few} cars on {street} this morning. Just saying.',
      'Public meeting about {project} tonight, 7 pm, bring {bring}.',
      'Whoever returned my glove to the fence on {street}: you are the city.',
    ],
    words: {
      money: ['40,000', 'half a million', 'exactly nothing'],
      project: ['the footbridge', 'the library roof', 'benches', 'the night bus', 'the old swimming pool'],
      hours: ['three', 'four', 'five'],
      street: ['Mill Street', 'Harbour Road', 'Tanner’s Row', 'the ring road', 'Station Hill'],
      count: ['112', '86', '240'],
      few: ['9', '14', '31'],
      bring: ['patience', 'a chair', 'facts', 'cake'],
    },
  },
  {
    name: 'music',
    interest: 'the viola',
    posts: [
      'Rehearsal note of the day: “{note}”',
      'Found a {instrument} at the flea market for {price}. It has {fault}. So do I.',
      'Practised the slow movement for {hours} hours. It is now slower.',
      'The {instrument} section was early tonight, which is a first since {when}.',
      'Playing the {piece} on Saturday. Come for the {piece}, stay because the doors are heavy.',
    ],
    words: {
      note: [
        'Less, but with conviction.',
        'Imagine it already ended well.',
        'Letter F: count, do not hope.',
        'Louder rests.',
      ],
      instrument: ['viola', 'bassoon', 'clarinet', 'harmonium', 'mandolin'],
      price: ['30', '12 and a lamp', 'the price of a sandwich'],
      fault: ['a crack', 'one key too few', 'a past'],
      hours: ['two', 'three'],
      when: ['spring', 'the old conductor', 'records began'],
      piece: ['Octet', 'Serenade', 'Third Suite', 'Requiem'],
    },
  },
  {
    name: 'night sky',
    interest: 'clear nights',
    posts: [
      '{object} at {power}× from the balcony. Seeing {seeing} out of 5. Worth the cold feet.',
      'Clouds again. I have polished the {part} so often that it is getting lighter.',
      'Showed {object} to the children next door. “{quote}”',
      'Four hours of exposures of {object}, one satellite through each. Art, then.',
      'Tonight: {object} rises at {time}. Look {direction}, above the chimneys.',
    ],
    words: {
      object: ['Saturn', 'the Double Cluster', 'M13', 'the Andromeda Galaxy', 'a thin Moon', 'Jupiter'],
      power: ['40', '80', '120', '200'],
      seeing: ['2', '3', '4'],
      part: ['mirror', 'tripod', 'eyepiece'],
      quote: ['Is it a sticker?', 'Who put it there?', 'Can it see us?'],
      time: ['21:40', '22:15', '23:05', '1:30'],
      direction: ['east', 'south-east', 'straight up'],
    },
  },
];

const REPLIES: readonly string[] = [
  'This is the best thing I have read today.',
  'Same here. I thought it was only me.',
  'Counterpoint: no.',
  'Going to steal this, thank you.',
  'How did you find out? Asking for a friend who is me.',
  'We had the very same last year. It passes.',
  'I need to know what happened next.',
  'Respectfully: show your working.',
  'You always make it sound so easy.',
  'My grandmother used to say exactly this.',
  'Please write the long version.',
  'Laughed out loud on a quiet bus. My fault.',
];

const QUOTES: readonly string[] = [
  'Worth your two minutes:',
  'I keep coming back to this.',
  'What they said, but louder.',
  'This, on a poster, in every office.',
  'Adding only that it is even truer in winter.',
  'Required reading for everybody who asked me last week.',
  'I disagree with one word of this and will not say which.',
  'Putting this here so that I find it again.',
];

const FIRST_NAMES: readonly string[] =
  `Mara Jonas Ines Tomas Aiko Leon Nadia Emil Ruth Pavel Sofia Anders Lucia Hugo Meera Oskar Yara Felix Dunja Karim Elin Marco Zofia
  Ilias Hanna Bruno Amara Viktor Noor Silas Petra Mateo Freya Samir Greta Dario Linnea Kofi Agnes Ravi Selma Arvo Paula Idris Clara
  Milan Tove Rafael Esme Janek`.split(/\s+/);

const LAST_NAMES: readonly string[] =
  `Lindqvist Okafor Weber Moreau Santos Novak Tanaka Berg Haddad Kovacs Iyer Silva Jansen Romano Petrov Larsen Dubois Mensah Fischer
  Aalto Costa Nowak Rahimi Keller Horvat Bauer Andersson Mbeki Ferrari Lund Vidal Sato Kruse Marin Brandt Osei Leclerc Rossi Dahl
  Popescu Varga Steiner`.split(/\s+/);

const BIO_ENDS: readonly string[] = [
  'Opinions are my own, and change.',
  'Mostly offline.',
  'Still waiting for the second volume.',
  'Here for the replies.',
  'Ask me about the bridge.',
  'Writing things down so as not to forget them.',
];

/** The persona of an index. Names repeat from the 2,100th on, with a number behind them. */
export function personaOf(index: number, random: Seeded): Persona {
  const pairs = FIRST_NAMES.length * LAST_NAMES.length;
  // A step without a common divisor with the number of pairs visits each once, and keeps neighbours apart.
  const pair = (index * 997) % pairs;
  const first = FIRST_NAMES[pair % FIRST_NAMES.length] ?? '';
  const last = LAST_NAMES[Math.floor(pair / FIRST_NAMES.length)] ?? '';
  const round = Math.floor(index / pairs);
  const topics = [random.below(TOPICS.length), random.below(TOPICS.length)];
  const interests = [...new Set(topics)].map((topic) => TOPICS[topic]?.interest ?? '').join(', ');
  return {
    id: `${first}.${last}${round === 0 ? '' : round + 1}`.toLowerCase(),
    displayName: `${first} ${last}`,
    bio: `${interests.charAt(0).toUpperCase()}${interests.slice(1)}. ${random.pick(BIO_ENDS)}`,
    topics,
  };
}

/** A post as this persona would write it. */
export function writePost(persona: Persona, random: Seeded): string {
  const topic = TOPICS[random.pick(persona.topics)];
  if (topic === undefined) throw new RangeError('a persona writes about a topic that is not there');
  const filled = random.pick(topic.posts).replace(/\{(\w+)\}/g, (slot, name: string) => {
    const words = topic.words[name];
    if (words === undefined) throw new RangeError(`topic ${topic.name} has no words for ${slot}`);
    return random.pick(words);
  });
  return filled.charAt(0).toUpperCase() + filled.slice(1);
}

export function writeReply(random: Seeded): string {
  return random.pick(REPLIES);
}

export function writeQuote(random: Seeded): string {
  return random.pick(QUOTES);
}
