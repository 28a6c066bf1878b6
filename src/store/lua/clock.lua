-- Fencing tokens are not below the server's clock in microseconds, so that a counter that was lost,
-- expired or left behind by a failover does not repeat tokens.
-- SETS  `time`, and `least` to a number
local time = redis.call('time')
local least = time[1] * 1000000 + time[2]

