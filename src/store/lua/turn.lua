-- Part of `acquire.lua`, for clients that exchange wake-ups with Redisson: a lock that is free is
-- not acquired while it is Redisson's turn.
-- KEYS  4 Redisson's turn
-- USES  `begins`, `holder`, `left` and `client`
local turn = begins and not holder and redis.pcall('pttl', KEYS[4])
if type(turn) == 'number' and turn > 0 then
  begins, left, client = false, turn, string.match(ARGV[1], '^(.*):')
end

