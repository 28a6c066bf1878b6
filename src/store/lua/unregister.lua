-- Removes a client from the queue of a name whose kind may not be known, and takes back an offer to
-- it, because no thread of it waits any more. It may have been woken for a free lock that it no
-- longer wants, so the next client is woken.
-- KEYS  1 lock, 2 queue of waiting clients, 3 if Redisson is told: its turn
-- ARGV  1 client id, 2 for how many ms the lock is offered then, 3 `shard`, 5 and later with KEYS
--       3: as in `redisson.lua`
-- USES  `wake` and `tell_redisson`; `serves`, true if an offer was taken back and `serve.lua` has
--       served those that wait
-- RETURNS 1, or 0 if the client was not in the queue
if serves then
  return 1
end
local answer = redis.pcall('zrem', queue, ARGV[1]) == 1 and 1 or 0
if redis.pcall('hdel', KEYS[1], ARGV[1] .. ':0') == 1 then
  answer = 1
end
if answer ~= 0 and not (KEYS[3] and tell_redisson(queue, KEYS[3])) then
  wake(queue, ARGV[2], ARGV[3])
end
return answer
