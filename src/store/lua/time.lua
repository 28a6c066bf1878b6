-- The server's clock.
-- SETS  `time` to its seconds, and microseconds beyond them; and `now` to the time in ms
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

