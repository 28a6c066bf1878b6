-- Takes a free lock. A repeat by the same owner, whose first reply was lost, finds its hold.
-- KEYS  1 lock, 2 fence
-- ARGV  1 owner, 2 lease in ms, 3 life of the fence in ms
-- RETURNS {1, fence} if held now, {0, ms until the holder's lease ends or -1} if somebody has it
local left = redis.call('pttl', KEYS[1]) -- -2 if there is no such key.
local repeated = left ~= -2 and redis.call('hexists', KEYS[1], ARGV[1]) == 1
if left ~= -2 and not repeated then
  return {0, left}
end
if spoilt then
  return spoilt
end
if repeated and last then
  redis.call('pexpire', KEYS[1], ARGV[2])
  return {1, last}
end

-- The first write: a server that is out of memory refuses it, and would not refuse later ones.
redis.call('set', KEYS[2], string.format('%.0f', next_fence), 'px', ARGV[3])
-- Has no effect on a key that is not there, but fails where the right to use it is missing: a hash
-- that could not be given a TTL afterwards would be held for ever.
redis.call('pexpire', KEYS[1], ARGV[2])
redis.call('hset', KEYS[1], ARGV[1], 1)
redis.call('pexpire', KEYS[1], ARGV[2])
return {1, next_fence}
