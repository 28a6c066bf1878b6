-- Part of `acquire.lua`, for clients that exchange wake-ups with Redisson: a lock that is free is
-- not acquired while it is Redisson's turn.
-- KEYS  4 Redisson's turn
-- USES  `begins`, `holder`, `left`, `client` and `time`
local turn = begins and not holder and redis.pcall('get', KEYS[4])
if type(turn) == 'string' and turn ~= '0' then
  time = time or redis.call('time')
  local rest = tonumber(turn) - time[1] * 1000 - math.floor(time[2] / 1000)
  if rest > 0 then
    begins, left, client = false, rest, string.match(ARGV[1], '^(.*):')
  end
end

