-- Fencing tokens are not below the client's proposal, which is the same for all servers of a
-- quorum: by their own clocks they would never agree on a token.
-- ARGV  last: the proposed token
-- SETS  `time`, and `least` to a number
local time = redis.call('time')
local least = tonumber(ARGV[#ARGV])

