-- Tail of `acquire.lua`: the client leaves the queue with the lock, or joins it without. Failures
-- are ignored: without the queue, the client tries again after a while, and without a block of
-- tokens it has one. The last of a block is at most a millisecond ahead of the clock, so that the
-- counter stays one.
-- KEYS, ARGV and RETURNS  as `acquire.lua`
-- USES  `fence`, `kept`, `least`, `left`, `client`, `queued`, `replaced` and `time`
if fence then
  if queued then
    redis.pcall('zrem', KEYS[3], client)
    local last = math.min(fence + ARGV[6] - 1, least + 1000)
    if last > fence and not kept then
      local stored = redis.pcall('set', KEYS[2], string.format('%.0f', last), 'px', ARGV[3])
      if stored.ok then
        return {fence, last}
      end
    end
  elseif replaced then
    -- A thread of the client still waits, and the client has taken its offer.
    time = time or redis.call('time')
    redis.pcall('zadd', KEYS[3], 'xx', time[1] * 1000 + math.floor(time[2] / 4) / 250, client)
  end
  return fence
end
if ARGV[4] ~= '0' then
  local mode, score = 'xx', redis.pcall('zscore', KEYS[3], client)
  if type(score) == 'string' then
    -- A client that did not take its offer in time has not stopped: it stays, without the mark.
    score = math.floor(score * 250 + 0.1) / 250
  else
    time = time or redis.call('time')
    mode, score = 'nx', time[1] * 1000 + math.floor(time[2] / 4) / 250
  end
  local joined = redis.pcall('zadd', KEYS[3], mode, score, client)
  -- No key is left without a TTL, even if the user lacks the right to set one.
  if type(joined) == 'number' and redis.pcall('pexpire', KEYS[3], ARGV[4]) ~= 1 then
    redis.pcall('zrem', KEYS[3], client)
  end
end
return {0, left}
