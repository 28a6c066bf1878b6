-- Renews the lease of a hold. Never revives one that is gone, or that only keeps the lock taken.
-- KEYS  1 lock
-- ARGV  1 owner, 2 lease in ms
-- RETURNS 1, or 0 if the hold is gone
if (redis.call('hget', KEYS[1], ARGV[1]) or '0') == '0' then
  return 0
end
return redis.call('pexpire', KEYS[1], ARGV[2])
