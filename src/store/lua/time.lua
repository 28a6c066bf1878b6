-- The server's clock.
-- SETS  `time` to its seconds, and microseconds beyond them
local time = redis.call('time')

