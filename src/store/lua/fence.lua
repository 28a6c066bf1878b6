-- Shared by the scripts that begin a hold: the fencing tokens of a name.
local LARGEST_FENCE = 9007199254740991 -- 2^53 - 1: beyond it Lua's numbers skip integers.

-- RETURNS the last token or nil if there is none, and an error reply if the counter is spoilt.
local function last_fence(key)
  local last = redis.pcall('get', key)
  if not last then
    return nil
  end
  if type(last) == 'table' then
    local foreign = string.find(last.err, 'WRONGTYPE', 1, true)
    return nil, foreign and redis.error_reply('FENCE ' .. key .. ' is not a counter') or last
  end
  if #last > 16 or not string.find(last, '^%d+$') then
    return nil, redis.error_reply('FENCE ' .. key .. ' does not hold a token')
  end
  return tonumber(last)
end

-- The token after `last` is not below the server's clock in microseconds either, so that a counter
-- that was lost, expired or left behind by a failover does not repeat tokens.
-- RETURNS the token, or nil and an error reply if there are none left.
local function next_fence(key, last)
  local time = redis.call('time')
  local token = math.max(time[1] * 1000000 + time[2], (last or 0) + 1)
  if token > LARGEST_FENCE then
    return nil, redis.error_reply('FENCE ' .. key .. ' has run out of tokens')
  end
  return token
end

