-- Tail of the scripts that may free a lock: if it is free, wakes the client that has waited
-- longest. The client stays in the queue until it has the lock or leaves. Clients whose channel has
-- no listener are gone and are removed. Failures are ignored: a client that is not woken tries
-- again after a while. The channel is that of `Keys::channel`, and the message is the key of the
-- lock.
-- KEYS  1 lock
-- USES  `queue`, a key, and `answer`, which is returned
for _ = 1, 100 do
  local first = redis.pcall('zrange', queue, 0, 0)[1]
  if not first or redis.pcall('exists', KEYS[1]) == 1 then
    break
  end
  if redis.pcall('publish', 'leasehold:wake:' .. first, KEYS[1]) ~= 0 then
    break
  end
  if redis.pcall('zrem', queue, first) ~= 1 then
    break
  end
end
return answer
