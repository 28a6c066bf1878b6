-- Counts the holds of a semaphore, offers included.
-- KEYS  1 lock
-- USES  `now`, `left` and `foreign`
-- RETURNS their number
if foreign then
  return foreign
end
if left == -2 then
  return 0
end
local holder = redis.call('zrange', KEYS[1], '(' .. now, '+inf', 'byscore', 'limit', 0, 1)[1]
if holder and string.sub(holder, 1, 2) ~= 'p:' then
  return redis.error_reply('WRONGTYPE found a read-write lock')
end
return redis.call('zcount', KEYS[1], '(' .. now, '+inf')
