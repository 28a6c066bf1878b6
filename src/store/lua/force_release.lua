-- Deletes a lock, whoever holds it, Redisson's included. Other types are left alone.
-- KEYS  1 lock, 2 queue
-- RETURNS 1, or 0 if nobody held it
redis.call('hlen', KEYS[1]) -- Fails on another type.
local answer, queue = redis.call('del', KEYS[1]), KEYS[2]
if answer == 0 then
  return answer
end

