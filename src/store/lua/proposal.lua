-- Fencing tokens are not below what the client proposes, the same to all servers of a quorum: by
-- clocks of their own they would never agree.
-- ARGV  last: the proposed token
-- SETS  `time`, and `least` to a number
local time = redis.call('time')
local least = tonumber(ARGV[#ARGV])

