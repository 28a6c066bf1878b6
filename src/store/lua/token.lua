-- Part of the scripts that begin a hold: its fencing token, which is above the last one of the name
-- and not below `least`, unless the last one is kept. This is the first write: a server that is out
-- of memory refuses it, and would not refuse later ones.
-- KEYS  2 fence
-- ARGV  3 life of the fence in ms
-- USES  `begins`; `keeps`, whether the last token is kept if there is one; and `least`
-- SETS  `fence` to the token, or to nil if no hold begins; and `kept`, whether it is the last one
local fence, kept = nil, false
if begins then
  local call, counter, life = redis.call, KEYS[2], ARGV[3]
  local greatest = 9007199254740991 -- 2^53 - 1: beyond it Lua's numbers skip integers.
  fence = tonumber(least)
  if keeps then
    local last = tonumber(redis.pcall('get', counter))
    kept = last and last >= 0 and last <= greatest and last % 1 == 0
    fence = kept and last or fence
  end
  if fence > greatest then
    return redis.error_reply('FENCE ' .. counter .. ' has run out of tokens')
  elseif not kept then
    -- Reads the counter too, because a command costs more than all that Lua does here.
    local stored = redis.pcall('set', counter, least, 'px', life, 'get')
    local last = stored and tonumber(stored)
    local is_token = last and last >= 0 and last % 1 == 0
    if stored and not (is_token and last < fence) then
      if type(stored) == 'table' and not string.find(stored.err, 'WRONGTYPE', 1, true) then
        -- Fails again. Redis 6.2 words an error that is returned differently.
        return call('set', counter, least, 'px', life, 'get')
      end
      local trouble = not is_token and ' does not hold a token'
        or last >= greatest and ' has run out of tokens'
      if trouble then
        if type(stored) == 'string' then
          call('set', counter, stored, 'px', life)
        end
        return redis.error_reply('FENCE ' .. counter .. trouble)
      end
      fence = last + 1
      call('set', counter, string.format('%.0f', fence), 'px', life)
    end
  end
end

