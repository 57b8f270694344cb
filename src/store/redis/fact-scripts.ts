/**
 * Owns the scripts of lease fill: how facts that change are read and stored. Each says which race it closes. All keys of one call share a slot.
 *
 * The first line makes each a script of Redis 7: one that a replica refuses as a whole, reads included (a demoted primary answers READONLY and the client
 * reconnects, instead of serving what is past), and that a cluster stops as soon as it leaves its slot. Numbers are doubles in Lua, exact for
 * IDs; `%.0f` and never `%d` writes them out.
 *
 * Every script may run twice, since whoever asked may not have heard the answer: the second run changes nothing and answers as the first did, or more cautiously.
 */
export const SCRIPT_HEAD = '#!lua\n';

/** Leaves the token on a miss, which is the right to store; none with an empty token. What is neither a value nor a token is not ours: a miss. */
export const LEASE = `
local function lease(key, token, life)
  local value = redis.call('GET', key)
  local kind = value and string.sub(value, 1, 1)
  if kind == 'v' then return value end
  if kind == 't' and value ~= 't' .. token then return '~' end
  if kind ~= 't' and token ~= '' then redis.call('SET', key, 't' .. token, 'PX', life) end
  return ''
end
`;

/**
 * Lease fill. KEYS: facts kept as strings. ARGV: token, its life in ms. A miss leaves the reader's token; whatever deletes the key takes the right to store away.
 * Answers for each key: the value, '' for "load it, the token is yours", '~' for "somebody else loads it".
 */
export const LEASE_GET = `${SCRIPT_HEAD}${LEASE}
local out = {}
for i, key in ipairs(KEYS) do out[i] = lease(key, ARGV[1], ARGV[2]) end
return out
`;

/** KEYS: facts. ARGV: token, life in ms, values. Stores a value only where the token still stands: a load that began before a change cannot put the past back. Answers 1 or 0 for each. */
export const LEASE_FILL = `${SCRIPT_HEAD}
local out = {}
for i, key in ipairs(KEYS) do
  if redis.call('GET', key) == 't' .. ARGV[1] then
    redis.call('SET', key, ARGV[i + 2], 'PX', ARGV[2])
    out[i] = 1
  else out[i] = 0 end
end
return out
`;

/** The same for the fields of one hash. KEYS: the hash. ARGV: token, its life in ms, life of the hash in ms, fields. A token carries its own end, since fields have no life of their own. */
export const LEASE_GET_FIELDS = `${SCRIPT_HEAD}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local own = 't' .. ARGV[1] .. ':'
local token = own .. string.format('%.0f', now + tonumber(ARGV[2]))
local fresh = redis.call('EXISTS', KEYS[1]) == 0
local out = {}
for i = 4, #ARGV do
  local value = redis.call('HGET', KEYS[1], ARGV[i])
  local kind = value and string.sub(value, 1, 1)
  local ends = kind == 't' and tonumber(string.match(value, ':(%d+)$'))
  if kind == 'v' then out[i - 3] = value
  elseif ends and ends > now and string.sub(value, 1, #own) ~= own then out[i - 3] = '~'
  else
    redis.call('HSET', KEYS[1], ARGV[i], token)
    out[i - 3] = ''
  end
end
if fresh then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
return out
`;

/** KEYS: the hash. ARGV: token, then field and value by turns. Answers 1 or 0 for each field. */
export const LEASE_FILL_FIELDS = `${SCRIPT_HEAD}
local own = 't' .. ARGV[1] .. ':'
local out = {}
for i = 2, #ARGV, 2 do
  local value = redis.call('HGET', KEYS[1], ARGV[i])
  if value and string.sub(value, 1, #own) == own then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
    out[#out + 1] = 1
  else out[#out + 1] = 0 end
end
return out
`;

/** KEYS: marks of parts of the cache. ARGV: the mark of those that have none. Answers the mark of each: of several who set one at once the first has, and all are told the same. */
export const MARK = `${SCRIPT_HEAD}
local out = {}
for i, key in ipairs(KEYS) do
  redis.call('SET', key, ARGV[1], 'NX')
  out[i] = redis.call('GET', key)
end
return out
`;

/** KEYS: values that never change, or that a late copy does no harm to. ARGV: life in ms, then one value for each key. One call for many: a command each would be as many batches as the window of calls takes. */
export const STORE = `${SCRIPT_HEAD}
local out = {}
for i, key in ipairs(KEYS) do
  redis.call('SET', key, ARGV[i + 1], 'PX', ARGV[1])
  out[i] = 1
end
return out
`;
