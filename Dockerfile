# One image for every role: TRIBUTARY_ROLE says which one a container plays.
# Nothing runs as root, and install scripts do not run: what they fetch (Node itself, Postgres, Redis) is for development.

FROM node:24.21.0-slim AS build
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
RUN npm ci --ignore-scripts
COPY tsconfig.json tsconfig.build.json ./
COPY src ./src
# tsc copies no SQL; the migrations belong beside the module that runs them.
RUN npm run build && cp -r src/store/postgres/migrations dist/store/postgres/migrations

FROM node:24.21.0-slim AS dependencies
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
RUN npm ci --omit=dev --ignore-scripts

FROM node:24.21.0-slim
ENV NODE_ENV=production
WORKDIR /app
COPY package.json LICENSE ./
COPY --from=dependencies /app/node_modules ./node_modules
COPY --from=build /app/dist ./dist
USER node
EXPOSE 50051 8080
# Alive, not ready: a container that waits for its database is not to be restarted. The slim image has no curl.
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
  CMD ["node", "-e", "fetch(`http://127.0.0.1:${process.env.TRIBUTARY_HTTP_PORT ?? 8080}/livez`).then((answer) => process.exit(answer.ok ? 0 : 1), () => process.exit(1))"]
CMD ["node", "dist/main.js"]
