-- Removes a client from the queue. It may have been woken for a free lock that it no longer wants,
-- so the next client is woken.
-- KEYS  1 lock, 2 queue of waiting clients
-- ARGV  1 client id
-- RETURNS 1, or 0 if the client was not in the queue
local answer, queue = redis.pcall('zrem', KEYS[2], ARGV[1]), KEYS[2]
if answer ~= 1 then
  return 0
end

