-- Fencing tokens are not below the server's clock in microseconds, so that no token is repeated if
-- a counter is lost, expires or falls back in a failover.
-- SETS  `time`, and `least` to a number
local time = redis.call('time')
local least = time[1] * 1000000 + time[2]

