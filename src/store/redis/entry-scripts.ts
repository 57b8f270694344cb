/**
 * Owns the scripts over sets of entries. Each says which race it closes. All keys of one call share a slot, or the call has one key.
 *
 * A timeline is one sorted set: entries are post IDs under −ID, so the newest come first; the state is one more member under +floor, so it
 * comes last. `r`: READY, complete above the floor. `b<token>:<ms>`: BUILDING since that millisecond of Redis' clock; takes pushes, is not complete; its score is
 * the newest ID trimmed meanwhile. No key: ABSENT. State and entries are one key, so they are evicted together.
 *
 * Every script may run twice, since whoever asked may not have heard the answer: the second run changes nothing and answers as the first did, or more cautiously.
 *
 * Numbers are doubles in Lua, exact for IDs; `%.0f` and never `%d` writes them out, and scores may be answered in exponents.
 */
import { LEASE, SCRIPT_HEAD } from './fact-scripts.ts';

/** Entries beyond the cap that a timeline may hold before it is trimmed back to the cap. */
export const TRIM_STRIDE = 64;

/**
 * Shared by the scripts that add. Trims before the set could outgrow its listpack, which it would never get back into, and moves the floor up to
 * the newest entry trimmed. Answers: 0 no such timeline, 1 added, 2 there already, 3 at or below the floor.
 */
const ADD = `
local function add(key, member, floor, id, cap, stride, entries)
  if tonumber(id) <= floor then return 3, floor end
  entries = entries or redis.call('ZCARD', key) - 1
  if entries >= cap + stride then
    local cut = redis.call('ZRANGE', key, cap, cap)[1]
    redis.call('ZREMRANGEBYRANK', key, cap, entries - 1)
    if tonumber(cut) > floor then
      floor = tonumber(cut)
      redis.call('ZADD', key, 'XX', cut, member)
    end
    if tonumber(id) <= floor then return 3, floor end
  end
  return 2 - redis.call('ZADD', key, 'NX', '-' .. id, id), floor
end
`;

/** KEYS: timelines. Whom a backfill concerns, asked for many at once. Answers the floor of each, -1 where there is no such timeline. */
export const FLOORS = `${SCRIPT_HEAD}
local out = {}
for i, key in ipairs(KEYS) do
  local state = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
  if state[1] then out[i] = string.format('%.0f', tonumber(state[2])) else out[i] = '-1' end
end
return out
`;

/**
 * KEYS: timelines. ARGV: post ID, cap, stride. Never creates a key: a list that was lost must not come back with one entry and look whole.
 *
 * Whether there is a key is asked by the count of its members, which the trim needs anyway: viewers who are not resident are most of many authors' followers, and cost this one call. (Asked by the
 * state instead, a fan-out with one resident in four passed a fifth fewer followers a second.)
 */
export const PUSH = `${SCRIPT_HEAD}${ADD}
local cap, stride = tonumber(ARGV[2]), tonumber(ARGV[3])
local out = {}
for i, key in ipairs(KEYS) do
  local members = redis.call('ZCARD', key)
  if members == 0 then out[i] = 0
  else
    local state = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
    out[i] = add(key, state[1], tonumber(state[2]), ARGV[1], cap, stride, members - 1)
  end
end
return out
`;

/**
 * KEYS: one timeline. ARGV: token, lease in ms, life in ms. Only one rebuild runs: a running one is left alone until its lease is over, and keeps what it was pushed when it is
 * taken over. A last member that is no state is not ours, and nothing above it can be trusted. Answers 'won', 'busy' or 'ready'.
 */
export const BEGIN = `${SCRIPT_HEAD}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local state = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
local floor = '0'
if state[1] then
  if state[1] == 'r' then return 'ready' end
  local token, since = string.match(state[1], '^b(.*):(%d+)$')
  if token == ARGV[1] then return 'won' end
  if not token then
    redis.call('DEL', KEYS[1])
  elseif now - tonumber(since) < tonumber(ARGV[2]) then
    return 'busy'
  else
    redis.call('ZREM', KEYS[1], state[1])
    floor = state[2]
  end
end
redis.call('ZADD', KEYS[1], floor, 'b' .. ARGV[1] .. ':' .. string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 'won'
`;

/**
 * KEYS: one timeline. ARGV: token ('' for any state), cap, stride, IDs. Adds older posts to a timeline that is still the one meant: a rebuild whose
 * token is gone adds nothing. Answers -1 where there is no such timeline, else how many were added.
 */
export const ADD_OLDER = `${SCRIPT_HEAD}${ADD}
local state = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
if not state[1] then return -1 end
if ARGV[1] ~= '' and string.sub(state[1], 1, #ARGV[1] + 2) ~= 'b' .. ARGV[1] .. ':' then return -1 end
local cap, stride = tonumber(ARGV[2]), tonumber(ARGV[3])
local floor, added = tonumber(state[2]), 0
for i = 4, #ARGV do
  local result
  result, floor = add(KEYS[1], state[1], floor, ARGV[i], cap, stride)
  if result == 1 then added = added + 1 end
end
return added
`;

/** Raises the floor and drops what lies at or below it: a list never claims what it does not hold. */
const RAISE = `
local function raise(key, member, floor)
  redis.call('ZADD', key, 'XX', floor, member)
  redis.call('ZREMRANGEBYSCORE', key, '-' .. floor, '(0')
end
`;

/**
 * KEYS: one timeline. ARGV: token, floor of the snapshot, life in ms. READY only if the token is still there: whatever deleted the key meanwhile wins. Answers 1 or 0.
 */
export const COMMIT = `${SCRIPT_HEAD}${RAISE}
local state = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
if not state[1] or string.sub(state[1], 1, #ARGV[1] + 2) ~= 'b' .. ARGV[1] .. ':' then return 0 end
local floor = ARGV[2]
if tonumber(state[2]) > tonumber(floor) then floor = string.format('%.0f', tonumber(state[2])) end
redis.call('ZREM', KEYS[1], state[1])
redis.call('ZADD', KEYS[1], floor, 'r')
if floor ~= '0' then raise(KEYS[1], 'r', floor) end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
`;

/** KEYS: one timeline. ARGV: floor. For a backfill that stopped before it reached the floor. Answers 1 where there is such a timeline. */
export const RAISE_FLOOR = `${SCRIPT_HEAD}${RAISE}
local state = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
if not state[1] then return 0 end
if tonumber(ARGV[1]) > tonumber(state[2]) then raise(KEYS[1], state[1], ARGV[1]) end
return 1
`;

/** Lengthens the life of a READY list that is read, not oftener than the renewal: an unread one expires. */
const RENEW = `
local function renew(key, life, renewal)
  if redis.call('PTTL', key) < tonumber(renewal) then redis.call('PEXPIRE', key, life) end
end
`;

/** Up to `most` IDs beyond the position, after the first `from` of them: all arguments but the key and the direction are numbers or their text. */
const BEYOND = `
local function beyond(key, direction, position, from, most)
  if direction == 'older' then return redis.call('ZRANGE', key, '-' .. position, '(0', 'BYSCORE', 'LIMIT', from, most) end
  return redis.call('ZRANGE', key, '(-' .. position, '-inf', 'BYSCORE', 'REV', 'LIMIT', from, most)
end
`;

/** State and entries are read in one moment. Answers state member, floor, then IDs; nothing where there is no key. */
const PAGE_OF = `${RENEW}${BEYOND}
local function page(key, direction, position, count, life, renewal)
  local state = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
  if not state[1] then return {} end
  local ids = beyond(key, direction, position, 0, count)
  if state[1] == 'r' then renew(key, life, renewal) end
  local out = {state[1], string.format('%.0f', tonumber(state[2]))}
  for i = 1, #ids do out[i + 2] = ids[i] end
  return out
end
`;

/** KEYS: one timeline. ARGV: 'older' or 'newer', position, count, life in ms, renewal in ms. Answers as `page`. */
export const PAGE = `${SCRIPT_HEAD}${PAGE_OF}
return page(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
`;

/**
 * KEYS: lists. ARGV as of PAGE. Answers one page for each key, of READY lists alone with IDs: the best `count` of all of them together are among those, and little else. So what is
 * answered does not grow with the number of lists. Every list gives a few IDs; those whose few were all among the best so far give twice as many more, until none is left of that
 * kind. A list gives all its IDs down to its last one, so each page is complete as far as it goes.
 */
export const PAGES = `${SCRIPT_HEAD}${RENEW}${BEYOND}
local sign = ARGV[1] == 'older' and -1 or 1
local function rank(id)
  local number = tonumber(id)
  return number and sign * number or math.huge
end
local count = tonumber(ARGV[3])
local out, open = {}, {}
for i, key in ipairs(KEYS) do
  local state = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
  out[i] = {}
  if state[1] then
    out[i] = {state[1], string.format('%.0f', tonumber(state[2]))}
    if state[1] == 'r' then
      renew(key, ARGV[4], ARGV[5])
      open[#open + 1] = i
    end
  end
end
local chunk = math.max(4, math.ceil(count / #KEYS))
local best = {}
while #open > 0 do
  local full = {}
  for _, i in ipairs(open) do
    local page = out[i]
    local have = #page - 2
    local most = math.min(chunk, count - have)
    local ids = most > 0 and beyond(KEYS[i], ARGV[1], ARGV[2], have, most) or {}
    for j = 1, #ids do
      page[#page + 1] = ids[j]
      best[#best + 1] = rank(ids[j])
    end
    if #ids == most and have + most < count then full[#full + 1] = i end
  end
  table.sort(best)
  for j = #best, count + 1, -1 do best[j] = nil end
  local last = #best >= count and best[count]
  open = {}
  for _, i in ipairs(full) do
    local page = out[i]
    if not last or rank(page[#page]) < last then open[#open + 1] = i end
  end
  chunk = chunk * 2
end
return out
`;

/**
 * KEYS: timeline, relations of its viewer. ARGV: author, IDs. Takes an author's entries away only while the cached relation says, in this same moment, that the viewer does not
 * follow: a new follow deletes that fact first and backfills after, so this cannot take what the backfill brought. Answers how many went, -1 without the fact.
 */
export const CLEAN_AUTHOR = `${SCRIPT_HEAD}
local relation = redis.call('HGET', KEYS[2], ARGV[1])
if not relation or string.sub(relation, 1, 2) ~= 'v0' then return -1 end
local gone = 0
for i = 2, #ARGV do gone = gone + redis.call('ZREM', KEYS[1], ARGV[i]) end
return gone
`;

/**
 * KEYS: timeline and pulled authors of one viewer. ARGV as of PAGE, then token ('' for none) and its life in ms. One call for all that a viewer's shard knows of a page. Answers the
 * fact as LEASE_GET does, and the page.
 */
export const HOME = `${SCRIPT_HEAD}${PAGE_OF}${LEASE}
local pulled = lease(KEYS[2], ARGV[6], ARGV[7])
return {pulled, page(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])}
`;
