-- Ends one hold and begins another in its place, with a token of its own and a whole lease. If it
-- yields and a client is in the queue, it only ends the old hold. A repeat, whose first reply was
-- lost, finds the new hold or none.
-- KEYS  1 lock, 2 fence, 3 queue of waiting clients
-- ARGV  1 owner of the old hold, 2 owner of the new one, 3 lease in ms, 4 life of the fence in ms,
--       5 whether it yields: 0 or 1, 6 for how many ms the lock is offered then
-- RETURNS {1, fence} if the new hold exists, {2, 0} if the lock was left to a client in the queue,
--         {0, 0} if the old hold is gone
local stands = redis.call('hexists', KEYS[1], ARGV[1]) == 1
local repeated = not stands and redis.call('hexists', KEYS[1], ARGV[2]) == 1
if not stands and not repeated then
  return {0, 0}
end
if repeated or ARGV[5] == '0' or not redis.pcall('zrange', KEYS[3], 0, 0)[1] then
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
end
redis.call('hdel', KEYS[1], ARGV[1])
local answer, queue, window = {2, 0}, KEYS[3], ARGV[6]

