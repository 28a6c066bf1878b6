-- Ends one hold and begins another in its place, with a token of its own and a whole lease.
-- A repeat, whose first reply was lost, finds the new hold.
-- KEYS  1 lock, 2 fence
-- ARGV  1 owner of the old hold, 2 owner of the new one, 3 lease in ms, 4 life of the fence in ms
-- RETURNS {1, fence} if the new hold stands, {0, ms} if the old one is gone: the time until the
--         lease of whoever has the lock now ends, -1 if it never does, -2 if nobody has it
local repeated = redis.call('hexists', KEYS[1], ARGV[2]) == 1
if not repeated and redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return {0, redis.call('pttl', KEYS[1])}
end
if spoilt then
  return spoilt
end
if repeated and last then
  redis.call('pexpire', KEYS[1], ARGV[3])
  return {1, last}
end

-- The first write: a server that is out of memory refuses it, and would not refuse later ones.
redis.call('set', KEYS[2], string.format('%.0f', next_fence), 'px', ARGV[4])
redis.call('hset', KEYS[1], ARGV[2], 1)
redis.call('hdel', KEYS[1], ARGV[1])
redis.call('pexpire', KEYS[1], ARGV[3])
return {1, next_fence}
