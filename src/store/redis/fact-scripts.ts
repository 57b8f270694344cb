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

/** Values go out in lines. No fact has more than one: what has is not ours, and is answered as a fact that does not read. */
const LINE = `
local function line(value) return string.find(value, '\\n', 1, true) and 'v' or value end
`;

/** Leaves the token on a miss, which is the right to store; none with an empty token. What is neither a value nor a token is not ours, nor is a token that would live for ever: a miss. */
export const LEASE = `
local function lease(key, token, life)
  local value = redis.call('GET', key)
  local kind = value and string.sub(value, 1, 1)
  if kind == 'v' then return value end
  local isToken = kind == 't' and redis.call('PTTL', key) >= 0
  if isToken and value ~= 't' .. token then return '~' end
  if not isToken and token ~= '' then redis.call('SET', key, 't' .. token, 'PX', life) end
  return ''
end
${LINE}`;

/**
 * Lease fill. KEYS: facts kept as strings. ARGV: token, its life in ms. A miss leaves the reader's token; whatever deletes the key takes the right to store away.
 * Answers a line for each key: the value, '' for "load it, the token is yours", '~' for "somebody else loads it".
 */
export const LEASE_GET = `${SCRIPT_HEAD}${LEASE}
local out = {}
for i, key in ipairs(KEYS) do out[i] = line(lease(key, ARGV[1], ARGV[2])) end
return table.concat(out, '\\n')
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

/**
 * The same for fields of hashes. KEYS: hashes. ARGV: life of a token in ms, life of a hash in ms, then for each hash the token and the fields, with commas between them. A token carries its own end,
 * since fields have no life of their own. A hash gets its life with its first token, as does one that somebody else made to live for ever. Answers one text for each hash, a line for each field.
 */
export const LEASE_GET_FIELDS = `${SCRIPT_HEAD}${LINE}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local out = {}
for i, key in ipairs(KEYS) do
  local asked = ARGV[i + 2]
  local first = string.find(asked, ',', 1, true)
  local own = 't' .. string.sub(asked, 1, first - 1) .. ':'
  local lines = {}
  for field in string.gmatch(string.sub(asked, first), '[^,]+') do
    local value = redis.call('HGET', key, field)
    local kind = value and string.sub(value, 1, 1)
    local ends = kind == 't' and tonumber(string.match(value, ':(%d+)$'))
    if kind == 'v' then lines[#lines + 1] = line(value)
    elseif ends and ends > now and string.sub(value, 1, #own) ~= own then lines[#lines + 1] = '~'
    else
      redis.call('HSET', key, field, own .. string.format('%.0f', now + tonumber(ARGV[1])))
      lines[#lines + 1] = ''
    end
  end
  if redis.call('PTTL', key) == -1 then redis.call('PEXPIRE', key, ARGV[2]) end
  out[i] = table.concat(lines, '\\n')
end
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
