-- Fencing tokens are not below the server's clock in microseconds, so that no token is repeated if
-- a counter is lost, expires or falls back in a failover.
-- USES  `begins`; `time`, or nil if it was not read yet
-- SETS  `time`, and `least` to a string of digits
local least
if begins then
  time = time or redis.call('time')
  local micros = time[2]
  if #micros < 6 then
    micros = string.rep('0', 6 - #micros) .. micros
  end
  -- Joining strings is cheaper than computing and formatting a number.
  least = time[1] .. micros
end

