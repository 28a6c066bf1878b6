-- Renews the lease of a hold. Never revives one that is gone.
-- KEYS  1 lock
-- ARGV  1 owner, 2 lease in ms
-- RETURNS 1, or 0 if the hold is gone
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return 0
end
return redis.call('pexpire', KEYS[1], ARGV[2])
