-- Removes a client from the queue, and takes back an offer to it. It may have been woken for a free
-- lock that it no longer wants, so the next client is woken.
-- KEYS  1 lock, 2 queue of waiting clients
-- ARGV  1 client id, 2 for how many ms the lock is offered then, 3 `shard`
-- RETURNS 1, or 0 if the client was not in the queue
local queue, window, shard = KEYS[2], ARGV[2], ARGV[3]
local answer = redis.pcall('zrem', queue, ARGV[1]) == 1 and 1 or 0
if redis.pcall('hdel', KEYS[1], ARGV[1] .. ':0') == 1 then
  answer = 1
end
if answer == 0 then
  return answer
end

