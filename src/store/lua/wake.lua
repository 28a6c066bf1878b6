-- Tail of the scripts that may free a lock: if it is free, wakes the client that has waited longest
-- and offers it the lock, so that no other client can take it for a while, however near to the
-- server. An offer is a field `<client id>:0` with depth 0. The client moves to the end of the
-- queue with a mark, and leaves the queue when it takes the lock, or loses the mark when it asks
-- too late. If the mark is still there at its next turn it has stopped, and is removed; a client
-- that was removed registers again when it next tries. So a stopped client costs one offer: the
-- next one that listens is told too, asks until when the offer lasts, and looks again then. Of a
-- lock that stays taken the client is only told, and keeps its place: its mark says so, because it
-- may be far away, and counts as an offer when another client is told before this one has asked.
-- A client whose channel has no listener is removed if another one is reached. If none is, the
-- server may have restarted or just become the master, and all of them may be about to listen: they
-- are placed anew, in the same order, with a mark. For two seconds they keep their places, and
-- those behind them are only told that there is an end to that.
-- Places are multiples of four microseconds, and the mark of a client is one more if it was told,
-- two if it was offered the lock, three if it had no listener. Failures are ignored: a client that
-- is not woken tries again after a while.
-- KEYS  1 lock
-- USES  `tell`; `queue`, a key; `window`, for how many ms the lock is offered, or nil if it stays
--       taken; and `answer`, which is returned
local front, silent, reached, expected = 0, {}, false, false
local function place(mark)
  local now = redis.call('time')
  return now[1] * 1000 + math.floor(now[2] / 4) / 250 + mark
end
local function move(client, score)
  redis.pcall('zadd', queue, 'xx', string.format('%.17g', score), client)
end
for _ = 1, 100 do
  local first = redis.pcall('zrange', queue, front, front, 'withscores')
  local client, score = first[1], first[2]
  if not client or window and redis.pcall('exists', KEYS[1]) == 1 then
    break
  end
  local mark = math.floor(score * 1000 + 0.5) % 4
  local again = mark == 1 and not window
  local told = mark ~= 2 and (again and 1 or tell(client))
  if again then
    move(client, score + 0.001)
    front = front + 1
  elseif told == 0 and mark == 3 and place(0) - score <= 2000 then
    expected, front = true, front + 1
  elseif told == 0 and mark < 2 and client ~= 'redisson' then
    silent[#silent + 1], front = client, front + 1
  elseif not told or told == 0 then
    if redis.pcall('zrem', queue, client) ~= 1 then
      break
    end
  else
    reached = type(told) == 'number'
    if reached and not window then
      move(client, score + (1 - mark) / 1000)
      front = front + 1
    elseif reached and not expected and redis.pcall('hset', KEYS[1], client .. ':0', 0) == 1 then
      if redis.pcall('pexpire', KEYS[1], window) == 1 then
        move(client, place(0.002))
      else
        redis.pcall('hdel', KEYS[1], client .. ':0') -- No key is left without a TTL.
      end
    end
    for _, behind in ipairs(reached and redis.pcall('zrange', queue, front, front + 9) or {}) do
      if behind == client or tell(behind) ~= 0 then
        break
      end
    end
    break
  end
end
for i, client in ipairs(silent) do
  if reached then
    redis.pcall('zrem', queue, client)
  else
    move(client, place(i / 250 + 0.003))
  end
end
return answer
