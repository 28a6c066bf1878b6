-- Fencing tokens are not below the client's proposal, which is the same for all servers of a
-- quorum: by their own clocks they would never agree on a token.
-- ARGV  last: the proposed token
-- SETS  `least` to a string of digits
local least = ARGV[#ARGV]

