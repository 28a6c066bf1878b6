-- Releases a lock if the owner still holds it.
-- KEYS: 1 lock. ARGV: 1 owner. RETURNS: 1 if it was released, else 0.
if redis.call('HGET', KEYS[1], ARGV[1]) then
  return redis.call('DEL', KEYS[1])
end
return 0
