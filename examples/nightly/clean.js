// Orders as objects; what is no order is dropped.
const fs = require("fs");
const lines = JSON.parse(fs.readFileSync(process.env.HEADWAY_DEPENDENCIES, "utf8")).fetch;
const orders = lines
  .map((line) => line.split(";"))
  .filter((parts) => parts.length === 3)
  .map(([day, who, amount]) => ({ day, who, amount: Number(amount) }));
console.log(`${orders.length} of ${lines.length} lines are orders`);
fs.writeFileSync(process.env.HEADWAY_RESULT, JSON.stringify(orders));
