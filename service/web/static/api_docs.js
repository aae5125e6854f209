// The reference of the API. It sends no requests to the API: the page holds no token.
SwaggerUIBundle({ url: "/openapi.json", dom_id: "#api", deepLinking: true, supportedSubmitMethods: [], validatorUrl: null });
