-- Counts the holds of a semaphore, offers included.
-- KEYS  1 lock
-- USES  `find_members`
-- RETURNS their number
local left, foreign = find_members()
if foreign then
  return foreign
end
if left == -2 then
  return 0
end
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local holder = redis.call('zrange', KEYS[1], '(' .. now, '+inf', 'byscore', 'limit', 0, 1)[1]
if holder and string.sub(holder, 1, 2) ~= 'p:' then
  return redis.error_reply('WRONGTYPE found a read-write lock')
end
return redis.call('zcount', KEYS[1], '(' .. now, '+inf')
