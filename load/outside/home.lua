-- Sends the body that `npm run body -- --format json` made, again and again. For wrk, which says how many answers were no success.
-- Told by the environment: BODY is that file, API_KEY the key that `npm start` prints.
local file = assert(io.open(assert(os.getenv("BODY"), "BODY names the file of the request"), "rb"))
wrk.method = "POST"
wrk.body = file:read("*a")
file:close()
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Connect-Protocol-Version"] = "1"
wrk.headers["Authorization"] = "Bearer " .. assert(os.getenv("API_KEY"), "API_KEY must be set")
