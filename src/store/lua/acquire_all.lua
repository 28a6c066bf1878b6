-- Acquires several locks if all of them are free, and none otherwise. A repeat by the same owners,
-- whose first reply was lost, finds its holds. A lock that is not free is not examined: the client
-- then asks for that lock alone. All counters are read before the first of them is written, so that
-- none is changed if one is spoilt.
-- KEYS  lock and fence of each name
-- ARGV  1 lease in ms, 2 life of the fences in ms, 3 and later: the owner for each name
-- USES  `at_least` and `clock`
-- RETURNS {1, fence of each} if held now, {0, -1, 0, number of the first name that is not free,
--         counted from 0}
local repeated = {}
for i = 1, #KEYS / 2 do
  local left = redis.call('pttl', KEYS[2 * i - 1])
  local depth = left ~= -2 and redis.pcall('hget', KEYS[2 * i - 1], ARGV[i + 2])
  repeated[i] = type(depth) == 'string' and depth ~= '0'
  if left ~= -2 and not repeated[i] then
    return {0, -1, 0, i - 1}
  end
end
local least = clock(redis.call('time'))
local fences = {1}
for i = 1, #KEYS / 2 do
  local stored = redis.pcall('get', KEYS[2 * i])
  local last = stored and tonumber(stored)
  local fence = repeated[i] and last or math.max(tonumber(least), (last or 0) + 1)
  if stored and not (last and last >= 0 and last % 1 == 0) then
    return redis.error_reply('FENCE ' .. KEYS[2 * i] .. ' does not hold a token')
  elseif fence > 9007199254740991 then
    -- 2^53 - 1: Lua's numbers skip integers beyond it.
    return redis.error_reply('FENCE ' .. KEYS[2 * i] .. ' has run out of tokens')
  end
  fences[i + 1] = fence
end
for i = 1, #KEYS / 2 do
  local lock = KEYS[2 * i - 1]
  if not repeated[i] then
    -- The first write: a server that is out of memory refuses it, and would not refuse later ones.
    local life = at_least(ARGV[2], KEYS[2 * i])
    redis.call('set', KEYS[2 * i], string.format('%.0f', fences[i + 1]), 'px', life)
    redis.call('hset', lock, ARGV[i + 2], 1)
  end
  local lease = repeated[i] and at_least(ARGV[1], lock) or ARGV[1]
  if redis.pcall('pexpire', lock, lease) ~= 1 then
    -- The user lacks the right to set a TTL, and without one a lock would be held forever.
    for j = 1, i do
      if redis.pcall('hdel', KEYS[2 * j - 1], ARGV[j + 2]) ~= 1 then
        redis.call('set', KEYS[2 * j - 1], '', 'px', 1)
      end
    end
    return redis.call('pexpire', lock, ARGV[1])
  end
end
return fences
