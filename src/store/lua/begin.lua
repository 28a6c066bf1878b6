-- Tail of `acquire.lua`: begins the hold, with its depth and its lease. A repeat finds the hold and
-- renews it. The client leaves the queue with the lock, or joins it without. Failures in the queue
-- are ignored: the client tries again after a while, and without a block of tokens it has one. The
-- last of a block is at most a millisecond ahead of the clock, so that the counter stays one.
-- KEYS, ARGV and RETURNS  as `acquire.lua`
-- USES  `fence` and `kept`; `least`, `left`, `client`, `queued` and `join`; and `replaced`, an
--       owner whose field is removed, or nil
if fence then
  local call, lock = redis.call, KEYS[1]
  if not kept then
    call('hset', lock, ARGV[1], 1)
    if replaced then
      call('hdel', lock, replaced)
    end
  end
  if redis.pcall('pexpire', lock, ARGV[2]) ~= 1 then
    -- The user lacks the right to set a TTL, and without one the lock would be held for ever.
    if redis.pcall('hdel', lock, ARGV[1]) ~= 1 then
      call('set', lock, '', 'px', 1)
    end
    return call('pexpire', lock, ARGV[2])
  end
  if queued then
    redis.pcall('zrem', KEYS[3], client)
    local last = math.min(fence + ARGV[7] - 1, least + 1000)
    if last > fence and not kept then
      local stored = redis.pcall('set', KEYS[2], string.format('%.0f', last), 'px', ARGV[3])
      if stored.ok then
        return {fence, last}
      end
    end
  end
  return fence
end
if ARGV[4] ~= '0' then
  join()
end
return {0, left}
