-- Part of the scripts that begin a hold.
-- KEYS  2 fence
-- ARGV  3 life of the fence in ms
-- SETS  `clock`, `next_token` and `last_token`

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

-- Stores the token of a hold, which is above the last one of the name and not below `least`. If
-- `keeps` is set and there is a last one, that is kept instead. This is the first write: a server
-- that is out of memory refuses it, and would not refuse later ones.
-- Returns the token, whether it is the last one, and for how many ms the counter may advance beyond
-- `least`; or nil and an error reply.
local function next_token(least, keeps)
  local call, counter = redis.call, KEYS[2]
  -- 2^53 - 1: Lua's numbers skip integers beyond it.
  local greatest = 9007199254740991
  local fence = tonumber(least)
  if keeps then
    local last = tonumber(redis.pcall('get', counter))
    if last and last >= 0 and last <= greatest and last % 1 == 0 then
      return last, true
    end
  end
  if fence > greatest then
    return nil, redis.error_reply('FENCE ' .. counter .. ' has run out of tokens')
  end
  -- No client shortens the life that another one has given the counter.
  -- A number as an argument of a command is formatted, which costs as much as a cheap command.
  local left, life, passed = call('pttl', counter), ARGV[3], 0
  if left > tonumber(life) then
    life = left
  end
  -- Also reads the counter, because a command costs more than all that Lua does here.
  local stored = redis.pcall('set', counter, least, 'px', life, 'get')
  local last = stored and tonumber(stored)
  local is_token = last and last >= 0 and last % 1 == 0
  if stored and not (is_token and last < fence) then
    if type(stored) == 'table' and not string.find(stored.err, 'WRONGTYPE', 1, true) then
      -- Runs the command again to fail with its error: Redis 6.2 words a returned one differently.
      return nil, call('set', counter, least, 'px', life, 'get')
    end
    local trouble = not is_token and ' does not hold a token'
      or last >= greatest and ' has run out of tokens'
    if trouble then
      if type(stored) == 'string' then
        call('set', counter, stored, 'keepttl')
      end
      return nil, redis.error_reply('FENCE ' .. counter .. trouble)
    end
    if last > fence + 1000 then
      -- The clock was set back, or that of another client of a quorum is ahead. The counter is then
      -- a clock itself, and advances by the time since it was last written. Its TTL shows this time
      -- whatever life another client has given it, because each such TTL begins as a multiple of
      -- 1,024 ms.
      passed, life = -left % 1024, life + -life % 1024
    end
    fence = last + 1
    call('set', counter, string.format('%.0f', fence), 'px', life)
  end
  return fence, false, passed
end

-- Stores the last of up to `count` tokens that begin with `fence`. Either that token is at most a
-- millisecond ahead of `least`, so that the counter remains a clock, or the counter advances no
-- faster than a clock: by a token for each microsecond of the `passed` ms.
-- Returns it, or `fence` if it cannot be stored.
local function last_token(fence, count, least, passed)
  local last = math.min(fence + count - 1, math.max(least + 1000, fence + passed * 1000))
  if last <= fence then
    return fence
  end
  local stored = redis.pcall('set', KEYS[2], string.format('%.0f', last), 'keepttl')
  return stored.ok and last or fence
end
