-- Reads the holder of a lock. A lock that is offered to a waiting client is not held.
-- KEYS  1 lock
-- USES  `left`, `holder`, `depth` and `foreign`
-- RETURNS {ms until the lease ends, owner, depth}, empty if it is not held
if foreign then
  return foreign
end
if not holder or depth == '0' and string.sub(holder, -2) == ':0' then
  return {}
end
return {left, holder, depth}
