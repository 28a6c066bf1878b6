-- Tail of the scripts that may free a lock: if it is free, wakes the client that has waited longest
-- and offers it the lock, so that no other client can take it for a while, however near to the
-- server. An offer is a field `<client id>:0` with depth 0. The client moves to the end of the
-- queue with a mark, half a microsecond, and leaves the queue when it takes the lock, or loses the
-- mark when it asks too late. If the mark is still there at its next turn it has stopped, and is
-- removed, as are clients whose channel has no listener; a client that was removed registers again
-- when it next tries. So a stopped client costs one offer. Of a lock that stays taken the client is
-- only told: it gets the mark, and keeps its place. Failures are ignored: a client that is not
-- woken tries again after a while.
-- KEYS  1 lock
-- USES  `tell`; `queue`, a key; `window`, for how many ms the lock is offered, or nil if it stays
--       taken; and `answer`, which is returned
for _ = 1, 100 do
  local first = redis.pcall('zrange', queue, 0, 0, 'withscores')
  local client, score = first[1], first[2]
  if not client or window and redis.pcall('exists', KEYS[1]) == 1 then
    break
  end
  local stopped = math.abs(score * 1000 % 1 - 0.5) < 0.3 -- Scores have quarters of microseconds.
  local told = stopped and 0 or tell(client)
  if told ~= 0 then
    local place = not window and score
    if type(told) ~= 'number' then
      place = nil
    elseif window and redis.pcall('hset', KEYS[1], client .. ':0', 0) == 1 then
      if redis.pcall('pexpire', KEYS[1], window) == 1 then
        local now = redis.call('time')
        place = now[1] * 1000 + now[2] / 1000
      else
        -- No key is left without a TTL.
        redis.pcall('hdel', KEYS[1], client .. ':0')
      end
    end
    if place then
      redis.pcall('zadd', queue, 'xx', string.format('%.17g', place + 0.0005), client)
    end
    break
  end
  if redis.pcall('zrem', queue, client) ~= 1 then
    break
  end
end
return answer
