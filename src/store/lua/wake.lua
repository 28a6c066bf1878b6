-- Tail of the scripts that may free a lock: if it is free, wakes the client that has waited longest
-- and offers it the lock, so that no other client can take it for a while, however near to the
-- server. An offer is a field `<client id>:0` with depth 0. The client moves to the end of the
-- queue with a mark, and leaves the queue when it takes the lock, or loses the mark when it asks
-- too late. If the mark is still there at its next turn it has stopped, and is removed, as are
-- clients whose channel has no listener; a client that was removed registers again when it next
-- tries. So a stopped client costs one offer. Of a lock that stays taken the client is only told,
-- and keeps its place: its mark says so, because it may be far away, and counts as an offer when
-- another client is told before this one has asked. Places are multiples of four microseconds, and
-- the mark of a client is one more if it was told, two if it was offered the lock. Failures are
-- ignored: a client that is not woken tries again after a while.
-- KEYS  1 lock
-- USES  `tell`; `queue`, a key; `window`, for how many ms the lock is offered, or nil if it stays
--       taken; and `answer`, which is returned
local front = 0
for _ = 1, 100 do
  local first = redis.pcall('zrange', queue, front, front, 'withscores')
  local client, score = first[1], first[2]
  if not client or window and redis.pcall('exists', KEYS[1]) == 1 then
    break
  end
  local mark = math.floor(score * 1000 + 0.5) % 4
  local again, place = mark == 1 and not window, nil
  local told = mark == 2 and 0 or again and 1 or tell(client)
  if told == 0 then
    if redis.pcall('zrem', queue, client) ~= 1 then
      break
    end
  elseif type(told) == 'number' and not window then
    place = score + 0.001
  elseif type(told) == 'number' and redis.pcall('hset', KEYS[1], client .. ':0', 0) == 1 then
    if redis.pcall('pexpire', KEYS[1], window) == 1 then
      local now = redis.call('time')
      place = now[1] * 1000 + math.floor(now[2] / 4) / 250 + 0.002
    else
      -- No key is left without a TTL.
      redis.pcall('hdel', KEYS[1], client .. ':0')
    end
  end
  if place then
    redis.pcall('zadd', queue, 'xx', string.format('%.17g', place), client)
  end
  if again then
    front = front + 1
  elseif told ~= 0 then
    break
  end
end
return answer
