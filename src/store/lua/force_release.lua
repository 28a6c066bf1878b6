-- Deletes a lock regardless of its holder, even a lock of Redisson. Other types are left alone.
-- KEYS  1 lock, 2 queue of waiting clients
-- RETURNS 1, or 0 if it was not held
redis.call('hlen', KEYS[1]) -- Fails on another type.
local answer, queue = redis.call('del', KEYS[1]), KEYS[2]
if answer == 0 then
  return answer
end

