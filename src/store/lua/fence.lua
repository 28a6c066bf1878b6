-- Head of the scripts that begin a hold: reads the last fencing token of the name and computes the
-- next one, which is above the last and not below `least`. Nothing is written.
-- (Not a function, because creating one costs more than all of this.)
-- KEYS  2 fence
-- USES  `least`, a number
-- SETS  `last` to a number or nil, `next_fence`, and `spoilt` to an error reply if there is none
local stored = redis.pcall('get', KEYS[2])
local last = stored and tonumber(stored)
local next_fence = math.max(least, (last or 0) + 1)
local spoilt
if stored and not (last and last >= 0 and last % 1 == 0) then
  spoilt = redis.error_reply('FENCE ' .. KEYS[2] .. ' does not hold a token')
  if type(stored) == 'table' and not string.find(stored.err, 'WRONGTYPE', 1, true) then
    spoilt = stored
  end
elseif next_fence > 9007199254740991 then -- 2^53 - 1: beyond it Lua's numbers skip integers.
  spoilt = redis.error_reply('FENCE ' .. KEYS[2] .. ' has run out of tokens')
end

