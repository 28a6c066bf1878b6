-- Ends a script if `serve.lua` was to serve.
-- RETURNS 1
if serves then
  return 1
end

