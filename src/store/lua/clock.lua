-- Part of the scripts that begin a hold.
-- SETS  `clock`

-- Returns the server's clock in microseconds, as a string of digits. Fencing tokens are not below
-- it, so that none is repeated if a counter is lost, expires or falls back in a failover.
local function clock(time)
  local micros = time[2]
  if #micros < 6 then
    micros = string.rep('0', 6 - #micros) .. micros
  end
  -- Joining strings is cheaper than computing and formatting a number.
  return time[1] .. micros
end

