/**
 * Owns the scripts over sets of entries. Each says which race it closes. All keys of one call share a slot, or the call has one key.
 *
 * A set of entries is a sorted set: entries are post IDs under −ID, so the newest come first; the state is one more member under +floor, so it
 * comes last. `r`: READY, complete above the floor. `b<token>:<ms>`: BUILDING since that millisecond of Redis' clock; takes pushes, is not complete; its score is
 * the newest ID trimmed meanwhile. No key: ABSENT. State and entries are one key, so they are evicted together.
 *
 * A timeline that is pushed to is several such sets, its parts, since the price of an insert is the length of the list that it looks through for a duplicate: 800 entries cost three times what
 * 100 do. The head is the key of the timeline; an older part is what a head once held. `r<n>:<lowest>`: READY, and goes on in part n of the ring; every entry of this part is above its floor,
 * every entry of the older ones at or below it. So each part is complete above its own floor, and where the next one was lost the timeline is complete above that of the part before: an eviction costs
 * what was evicted. `lowest` is the floor of the oldest part, or below it. Only a head is ever BUILDING. The name of a part comes round again after as many cuts as the ring has places; a link that
 * leads to a floor that is not lower than one's own leads nowhere.
 *
 * Every script may run twice, since whoever asked may not have heard the answer: the second run changes nothing and answers as the first did, or more cautiously.
 *
 * Numbers are doubles in Lua, exact for IDs; `%.0f` and never `%d` writes them out, and scores may be answered in exponents.
 */
import { LEASE, SCRIPT_HEAD } from './fact-scripts.ts';

/** Entries beyond the cap that a set may hold before it is trimmed back to the cap. */
export const TRIM_STRIDE = 64;

/** State member and floor of one part; the number of the part that it goes on in. */
const PART = `
local function part(key)
  local state = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
  if not state[1] then return nil end
  return {key = key, member = state[1], floor = tonumber(state[2])}
end
local function linkOf(member) return tonumber(string.match(member, '^r(%d+):')) end
local function isReady(member) return string.sub(member, 1, 1) == 'r' end
local function plain(member) return isReady(member) and 'r' or member end
`;

/** Writes state and floor of a part. Removes before it adds, so that a full listpack is not outgrown, and gives a set that was empty meanwhile its life back. */
const PUT = `
local function put(p, member, floor)
  if member == p.member then
    if floor ~= p.floor then redis.call('ZADD', p.key, 'XX', string.format('%.0f', floor), member) end
  else
    local life = redis.call('PTTL', p.key)
    redis.call('ZREM', p.key, p.member)
    redis.call('ZADD', p.key, string.format('%.0f', floor), member)
    if life >= 0 then redis.call('PEXPIRE', p.key, math.max(life, 1)) end
  end
  p.member, p.floor = member, floor
end
`;

/**
 * The part after one, where KEYS from `ring` on are the places of the ring. A link that leads nowhere is taken out: the timeline ends there, and the head is told so. Only for calls that name
 * the ring.
 */
const OLDER_PART = `
local function remember(parts)
  local link = parts[2] and linkOf(parts[1].member)
  if link then put(parts[1], 'r' .. link .. ':' .. string.format('%.0f', parts[#parts].floor), parts[1].floor) end
end
local function olderPart(p, ring)
  local n = linkOf(p.member)
  if not n then return nil end
  local older = KEYS[ring + n - 1] and part(KEYS[ring + n - 1])
  if older and isReady(older.member) and older.floor < p.floor then return older end
  put(p, 'r', p.floor)
  return nil
end
local function chain(ring, head)
  local parts, p = {}, head or part(KEYS[ring - 1])
  while p do
    local link = linkOf(p.member)
    parts[#parts + 1] = p
    p = olderPart(p, ring)
    if link and not p then remember(parts) end
  end
  return parts
end
`;

/** Ends the timeline with its i-th part, and leaves the older ones to nobody. */
const END_WITH = `
local function endWith(parts, i)
  for j = #parts, i + 1, -1 do
    redis.call('UNLINK', parts[j].key)
    parts[j] = nil
  end
  put(parts[i], plain(parts[i].member), parts[i].floor)
end
`;

/** Trims to the cap, moves the floor up to the newest entry trimmed, and lets the head know it. Answers how many entries are left. */
const TRIM = `
local function trim(parts, cap)
  local total = 0
  for i, p in ipairs(parts) do
    local entries = redis.call('ZCARD', p.key) - 1
    local room = cap - total
    if entries > room then
      if room == 0 then endWith(parts, i - 1)
      else
        local cut = redis.call('ZRANGE', p.key, room, room)[1]
        redis.call('ZREMRANGEBYRANK', p.key, room, entries - 1)
        p.floor = math.max(p.floor, tonumber(cut))
        redis.call('ZADD', p.key, 'XX', string.format('%.0f', p.floor), p.member)
        endWith(parts, i)
      end
      remember(parts)
      return cap
    end
    total = total + entries
  end
  return total
end
`;

/** KEYS: timelines. Whom a backfill concerns, asked for many at once. Answers the floor of each or an ID below it, -1 where there is no such timeline. */
export const FLOORS = `${SCRIPT_HEAD}
local out = {}
for i, key in ipairs(KEYS) do
  local state = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
  if state[1] then out[i] = string.match(state[1], '^r%d+:(%d+)$') or string.format('%.0f', tonumber(state[2])) else out[i] = '-1' end
end
return out
`;

/**
 * KEYS: sets. ARGV: post ID, cap, stride, entries from which a head is to be cut (0: never). Never creates a key: a list that was lost must not come back with one entry and look whole. Answers for
 * each: 0 no such set, 1 added, 2 there already, 3 at or below the floor, 4 added to a head that is to be cut, 5 nothing done: it belongs to an older part.
 *
 * Whether there is a key is asked by the count of its members, which the trim needs anyway: viewers who are not resident are most of many authors' followers, and cost this one call. (Asked by the
 * state instead, a fan-out with one resident in four passed a fifth fewer followers a second.)
 *
 * A set that outgrows cap and stride is trimmed before it could outgrow its listpack, which it would never get back into. For a head that means that nobody could cut it: its older parts are
 * given up.
 */
export const PUSH = `${SCRIPT_HEAD}
local id, cap, stride, full = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local score = '-' .. ARGV[1]
local out = {}
for i, key in ipairs(KEYS) do
  local members = redis.call('ZCARD', key)
  if members == 0 then out[i] = 0
  else
    local state = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
    local member, floor = state[1], tonumber(state[2])
    if id > floor and members > cap + stride then
      local cut = redis.call('ZRANGE', key, cap, cap)[1]
      redis.call('ZREMRANGEBYRANK', key, cap, members - 2)
      floor = math.max(floor, tonumber(cut))
      if string.sub(member, 1, 1) == 'r' and member ~= 'r' then
        redis.call('ZREM', key, member)
        member = 'r'
      end
      redis.call('ZADD', key, string.format('%.0f', floor), member)
      members = cap + 1
    end
    if id > floor then
      if redis.call('ZADD', key, 'NX', score, ARGV[1]) == 0 then out[i] = 2
      elseif full > 0 and members >= full and string.sub(member, 1, 1) == 'r' then out[i] = 4
      else out[i] = 1 end
    else
      local lowest = string.match(member, '^r%d+:(%d+)$')
      out[i] = lowest and id > tonumber(lowest) and 5 or 3
    end
  end
end
return out
`;

/**
 * KEYS: timelines, each with its ring. ARGV: keys of each, entries of a part, entries that a head keeps, cap. Makes an older part of each full head, as a copy of the whole, which is cheap,
 * of which each then loses what the other keeps. The newest entries stay, so that the newest page is in the head, and posts that overtook one another still find their place there. Then trims.
 * Answers for each 1 where it cut, 0 where there was nothing to cut. A head that a rebuild left with several parts' worth is cut as a whole; so a second run may cut once more, which is as right.
 */
export const CUT = `${SCRIPT_HEAD}${PART}${PUT}${OLDER_PART}${END_WITH}${TRIM}
local each = tonumber(ARGV[1])
local size, keep, cap = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local function cut(at)
  local key = KEYS[at]
  local entries = redis.call('ZCARD', key) - 1
  local head = entries >= size + keep and part(key)
  if not head or not isReady(head.member) then return 0 end
  local parts = chain(at + 1, head)
  local link = linkOf(head.member)
  local new = link and link % (each - 1) + 1 or 1
  local name = KEYS[at + new]
  if link then
    -- The place is the oldest part's where the ring is full: it goes.
    for i = 2, #parts do
      if parts[i].key == name then
        endWith(parts, i - 1)
        break
      end
    end
  else
    -- What a timeline of an earlier life has left.
    redis.call('UNLINK', unpack(KEYS, at + 1, at + each - 1))
  end
  local stay = entries >= 2 * (size + keep) and keep or entries - size
  local boundary = tonumber(redis.call('ZRANGE', key, stay, stay)[1])
  redis.call('COPY', key, name, 'REPLACE')
  redis.call('ZREMRANGEBYRANK', name, 0, stay - 1)
  redis.call('ZREMRANGEBYRANK', key, stay, entries - 1)
  table.insert(parts, 2, {key = name, member = head.member, floor = head.floor})
  put(head, 'r' .. new .. ':' .. string.format('%.0f', parts[#parts].floor), boundary)
  trim(parts, cap)
  return 1
end
local out = {}
for i = 1, #KEYS / each do out[i] = cut((i - 1) * each + 1) end
return out
`;

/**
 * KEYS: one set. ARGV: token, lease in ms, life in ms, whose tokens begin with this. Only one rebuild runs: a running one is left alone until its lease is over, and keeps what it was pushed when
 * it is taken over. One of the same owner is over, whatever its lease says: an owner begins no second one while the first runs, so what stands there is of a `begin` whose answer was lost. It is taken
 * over with a new token and not with its own, so that the lost call, should it arrive after a deletion, leaves a claim that nobody commits. A last member that is no state is not ours, and nothing
 * above it can be trusted. Answers 'won', 'busy' or 'ready'.
 */
export const BEGIN = `${SCRIPT_HEAD}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local state = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
local floor = '0'
if state[1] then
  if state[1] == 'r' or string.match(state[1], '^r%d+:%d+$') then return 'ready' end
  local token, since = string.match(state[1], '^b(.*):(%d+)$')
  if token == ARGV[1] then return 'won' end
  if not token then
    redis.call('DEL', KEYS[1])
  elseif string.sub(token, 1, #ARGV[4] + 1) ~= ARGV[4] .. '-' and now - tonumber(since) < tonumber(ARGV[2]) then
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

/** Puts IDs where they belong, after a trim where there is no room. A place that is at or below every floor is nowhere. */
const INSERT = `
local function insert(parts, total, id, cap, stride)
  if total >= cap + stride and tonumber(id) > parts[#parts].floor then total = trim(parts, cap) end
  for _, p in ipairs(parts) do
    if tonumber(id) > p.floor then
      local fresh = redis.call('ZADD', p.key, 'NX', '-' .. id, id)
      return total + fresh, 2 - fresh
    end
  end
  return total, 3
end
local function entriesOf(parts)
  local total = 0
  for _, p in ipairs(parts) do total = total + redis.call('ZCARD', p.key) - 1 end
  return total
end
`;

/**
 * KEYS: one set, its ring. ARGV: token ('' for any state), cap, stride, IDs. Adds posts wherever they belong in a set that is still the one meant: a rebuild whose
 * token is gone adds nothing, and changes nothing. Answers -1 where there is no such set, else how many were added.
 */
export const ADD_OLDER = `${SCRIPT_HEAD}${PART}${PUT}${OLDER_PART}${END_WITH}${TRIM}${INSERT}
local head = part(KEYS[1])
if not head then return -1 end
if ARGV[1] ~= '' and string.sub(head.member, 1, #ARGV[1] + 2) ~= 'b' .. ARGV[1] .. ':' then return -1 end
local parts = chain(2, head)
local cap, stride = tonumber(ARGV[2]), tonumber(ARGV[3])
local total, added = entriesOf(parts), 0
for i = 4, #ARGV do
  local answer
  total, answer = insert(parts, total, ARGV[i], cap, stride)
  if answer == 1 then added = added + 1 end
end
return added
`;

/** KEYS: timelines, each with its ring. ARGV: keys of each, post ID, cap, stride. A push of a post that others have overtaken. Answers for each as PUSH does: 0, 1, 2 or 3. */
export const PUSH_OLDER = `${SCRIPT_HEAD}${PART}${PUT}${OLDER_PART}${END_WITH}${TRIM}${INSERT}
local each, cap, stride = tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4])
local out = {}
for i = 1, #KEYS / each do
  local parts = chain((i - 1) * each + 2)
  if not parts[1] then out[i] = 0
  else
    local _, answer = insert(parts, entriesOf(parts), ARGV[2], cap, stride)
    out[i] = answer
  end
end
return out
`;

/**
 * KEYS: one set. ARGV: token, floor of the snapshot, life in ms. READY only if the token is still there: whatever deleted the key meanwhile wins. Answers 1 or 0.
 */
export const COMMIT = `${SCRIPT_HEAD}
local state = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
if not state[1] or string.sub(state[1], 1, #ARGV[1] + 2) ~= 'b' .. ARGV[1] .. ':' then return 0 end
local floor = ARGV[2]
if tonumber(state[2]) > tonumber(floor) then floor = string.format('%.0f', tonumber(state[2])) end
redis.call('ZREM', KEYS[1], state[1])
redis.call('ZADD', KEYS[1], floor, 'r')
if floor ~= '0' then redis.call('ZREMRANGEBYSCORE', KEYS[1], '-' .. floor, '(0') end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
`;

/** KEYS: one set, its ring. ARGV: floor. Drops what lies at or below it: a list never claims what it does not hold. Answers 1 where there is such a set. */
export const RAISE_FLOOR = `${SCRIPT_HEAD}${PART}${PUT}${OLDER_PART}${END_WITH}${TRIM}
local parts = chain(2)
if not parts[1] then return 0 end
local floor = tonumber(ARGV[1])
for i, p in ipairs(parts) do
  if floor >= p.floor then
    if floor > p.floor then
      put(p, p.member, floor)
      redis.call('ZREMRANGEBYSCORE', p.key, '-' .. ARGV[1], '(0')
    end
    endWith(parts, i)
    remember(parts)
    break
  end
end
return 1
`;

/** Takes IDs out of whatever parts they are in. */
const TAKE_OUT = `
local function takeOut(parts, from)
  local gone = 0
  for i = from, #ARGV do
    local id = tonumber(ARGV[i])
    for _, p in ipairs(parts) do
      if id > p.floor then
        gone = gone + redis.call('ZREM', p.key, ARGV[i])
        break
      end
    end
  end
  return gone
end
`;

/** KEYS: one set, its ring. ARGV: IDs, of posts that are gone for good. Answers how many were there. */
export const TAKE_OUT_DEAD = `${SCRIPT_HEAD}${PART}${PUT}${OLDER_PART}${TAKE_OUT}
return takeOut(chain(2), 1)
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

/**
 * State and entries are read in one moment. Answers state member, floor, then IDs; nothing where there is no key; 'more' alone where older parts would have to be looked at, and the call does not name
 * the ring. The floor is that of the last part looked at: as far as the page goes, the timeline is complete. A part that is read lives on, and one that nobody reads goes.
 */
const PAGE_OF = `${PART}${PUT}${OLDER_PART}${RENEW}${BEYOND}
local function page(ring, direction, position, count, life, renewal)
  local p = part(KEYS[1])
  if not p then return {} end
  local at, most = tonumber(position), tonumber(count)
  local parts, ids = {p}, {}
  local function take(from)
    if #ids >= most then return end
    local some = beyond(from.key, direction, position, 0, most - #ids)
    for i = 1, #some do ids[#ids + 1] = some[i] end
  end
  local function enough()
    if direction == 'older' then return #ids >= most end
    return p.floor <= at
  end
  if direction == 'older' then take(p) end
  while not enough() and linkOf(p.member) do
    if #KEYS < ring then return {'more'} end
    local older = olderPart(p, ring)
    if not older then
      remember(parts)
      break
    end
    p = older
    parts[#parts + 1] = p
    if direction == 'older' and at > p.floor then take(p) end
  end
  if direction == 'newer' then
    for i = #parts, 1, -1 do take(parts[i]) end
  end
  if isReady(p.member) then
    for _, each in ipairs(parts) do renew(each.key, life, renewal) end
  end
  local state = parts[1].member
  if string.match(state, '^r%d+:%d+$') then state = 'r' end
  local out = {state, string.format('%.0f', p.floor)}
  for i = 1, #ids do out[i + 2] = ids[i] end
  return out
end
`;

/** KEYS: one timeline, and its ring or nothing. ARGV: 'older' or 'newer', position, count, life in ms, renewal in ms. Answers as `page`. */
export const PAGE = `${SCRIPT_HEAD}${PAGE_OF}
return page(2, ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
`;

/** KEYS: one part of a timeline. ARGV as of PAGE. What the part holds beyond the position, alone: its state member, its floor, then IDs; nothing where there is no key. */
export const PART_ALONE = `${SCRIPT_HEAD}${PART}${RENEW}${BEYOND}
local p = part(KEYS[1])
if not p then return {} end
if isReady(p.member) then renew(KEYS[1], ARGV[4], ARGV[5]) end
local out = {p.member, string.format('%.0f', p.floor)}
local ids = beyond(KEYS[1], ARGV[1], ARGV[2], 0, ARGV[3])
for i = 1, #ids do out[i + 2] = ids[i] end
return out
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
 * KEYS: timeline, relations of its viewer, ring of the timeline. ARGV: author, IDs. Takes an author's entries away only while the cached relation says, in this same moment, that the viewer does not
 * follow: a new follow deletes that fact first and backfills after, so this cannot take what the backfill brought. Answers how many went, -1 without the fact.
 */
export const CLEAN_AUTHOR = `${SCRIPT_HEAD}${PART}${PUT}${OLDER_PART}${TAKE_OUT}
local relation = redis.call('HGET', KEYS[2], ARGV[1])
if not relation or string.sub(relation, 1, 2) ~= 'v0' then return -1 end
local head = part(KEYS[1])
return head and takeOut(chain(3, head), 2) or 0
`;

/**
 * KEYS: timeline and pulled authors of one viewer, and the ring of the timeline or nothing. ARGV as of PAGE, then token ('' for none) and its life in ms. One call for all that a viewer's shard knows of
 * a page. Answers the fact as LEASE_GET does, and the page.
 */
export const HOME = `${SCRIPT_HEAD}${PAGE_OF}${LEASE}
local pulled = lease(KEYS[2], ARGV[6], ARGV[7])
return {pulled, page(3, ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])}
`;
