-- Takes a client out of the queue. Perhaps it was woken for a free lock that it does not want any
-- more: then the next client is.
-- KEYS  1 lock, 2 queue
-- ARGV  1 client id
-- RETURNS 1, or 0 if the client was not in the queue
local answer, queue = redis.pcall('zrem', KEYS[2], ARGV[1]), KEYS[2]
if answer ~= 1 then
  return 0
end

