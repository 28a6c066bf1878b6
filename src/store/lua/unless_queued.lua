-- Usually no client waits, and this is the cheapest way to find out.
if answer == 0 or redis.pcall('exists', queue) == 0 then
  return answer
end

