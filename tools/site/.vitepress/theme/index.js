import theme from "vitepress/theme-without-fonts";
import "./console.css";

export default theme;
