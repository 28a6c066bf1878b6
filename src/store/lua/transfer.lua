-- Ends one hold and begins another in its place, with a token of its own and a whole lease. If it
-- yields and a client is in the queue, it only ends the old hold. A repeat, whose first reply was
-- lost, finds the new hold or none.
-- KEYS  1 lock, 2 fence, 3 queue of waiting clients
-- ARGV  1 owner of the new hold, 2 lease in ms, 3 life of the fence in ms, 4 owner of the old hold,
--       5 whether it yields: 0 or 1, 6 for how many ms the lock is offered then, 7 `shard` if it
--       yields
-- SETS  `begins`, `keeps`, `replaced` and `time`
-- RETURNS the fence if the new hold exists, {2, 0} if the lock was left to a client in the queue,
--         {0, 0} if the old hold is gone
local replaced = (redis.call('hget', KEYS[1], ARGV[4]) or '0') ~= '0' and ARGV[4]
local keeps, time = not replaced and (redis.call('hget', KEYS[1], ARGV[1]) or '0') ~= '0', nil
if not replaced and not keeps then
  return {0, 0}
end
local begins = keeps or ARGV[5] == '0' or not redis.pcall('zrange', KEYS[3], 0, 0)[1]

